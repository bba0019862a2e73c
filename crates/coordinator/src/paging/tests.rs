//! Paging states: which are accepted, and which are refused.

use super::*;
use cluster::metadata::PagingKey;
use proptest::prelude::*;

const NOW: i64 = 1_800_000_000;
const DAY: Duration = Duration::from_secs(24 * 3600);

fn keys(ids: &[u32]) -> PagingKeys {
    let mut keys = PagingKeys::default();
    for id in ids {
        keys.put(PagingKey { id: *id, secret: [*id as u8; 32], created: NOW });
    }
    keys
}

fn state() -> PagingState {
    PagingState {
        query: QueryId::from_bytes([1; 16]),
        remaining: u64::MAX - 1,
        position: Position {
            key: Bytes::from_static(b"key"),
            region: Region::Clustered,
            prefix: Clustering::from_components([&b"ck"[..]]),
            weight: -1,
        },
        rows_in_last: 1 << 40,
        replicas: Some(Box::new(replicas(3))),
        processor_state: Bytes::from_static(b"more"),
    }
}

fn replicas(count: u8) -> LastReplicas {
    let hosts = (0..count).map(|n| HostId::from_bytes([n; 16])).collect();
    LastReplicas { before: Token(-5), last: Token(i64::MAX), hosts }
}

fn binding() -> Binding {
    Binding { table: TableId::from_bytes([2; 16]), role: None, statement: StatementHash([3; 32]) }
}

fn open(bytes: &Bytes, binding: &Binding) -> Result<PagingState, Refused> {
    PagingState::open(bytes, &keys(&[1, 2]), binding, NOW, DAY)
}

#[test]
fn paging_states_round_trip() {
    let sealed = state().seal(&keys(&[1, 2]), &binding(), NOW);
    assert_eq!(open(&sealed, &binding()), Ok(state()));
    let plain = PagingState { processor_state: Bytes::new(), replicas: None, ..state() };
    assert_eq!(open(&plain.seal(&keys(&[1, 2]), &binding(), NOW), &binding()), Ok(plain));
}

#[test]
fn every_damage_is_refused() {
    let good = state().seal(&keys(&[1, 2]), &binding(), NOW);
    for len in 0..good.len() {
        assert!(open(&good.slice(..len), &binding()).is_err());
    }
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bad = good.to_vec();
            bad[at] ^= 1 << bit;
            assert!(open(&bad.into(), &binding()).is_err(), "byte {at} bit {bit}");
        }
    }
    let longer: Bytes = [&good[..], &[0]].concat().into();
    assert_eq!(open(&longer, &binding()), Err(Refused::Forged));
    assert_eq!(open(&vec![VERSION; MAX_STATE_BYTES + 1].into(), &binding()), Err(Refused::Foreign));
}

#[test]
fn a_state_of_the_first_version_is_refused() {
    let mut old = vec![1, 0, 0, 0, 0];
    old.extend_from_slice(&[0; 70]);
    assert_eq!(open(&old.into(), &binding()), Err(Refused::Foreign));
}

#[test]
fn a_state_is_bound_to_one_table_role_and_statement() {
    let others = [
        Binding { table: TableId::from_bytes([9; 16]), ..binding() },
        Binding { role: Some(String::new()), ..binding() },
        Binding { role: Some("admin".into()), ..binding() },
        Binding { statement: StatementHash([4; 32]), ..binding() },
    ];
    let own = state().seal(&keys(&[1, 2]), &binding(), NOW);
    for other in &others {
        assert_eq!(open(&own, other), Err(Refused::Forged));
        assert_eq!(open(&state().seal(&keys(&[1, 2]), other, NOW), &binding()), Err(Refused::Forged));
    }
}

#[test]
fn it_expires() {
    let sealed = state().seal(&keys(&[2]), &binding(), NOW - 24 * 3600);
    assert!(open(&sealed, &binding()).is_ok());
    let sealed = state().seal(&keys(&[2]), &binding(), NOW - 24 * 3600 - 1);
    assert_eq!(open(&sealed, &binding()), Err(Refused::Expired));
    let ahead = state().seal(&keys(&[2]), &binding(), NOW + 60);
    assert!(open(&ahead, &binding()).is_ok(), "another node's clock may be ahead");
}

#[test]
fn keys_rotate() {
    let before = state().seal(&keys(&[1]), &binding(), NOW);
    assert!(open(&before, &binding()).is_ok(), "the key before is still there");
    let verified = PagingState::open(&before, &keys(&[2, 3]), &binding(), NOW, DAY);
    assert_eq!(verified, Err(Refused::UnknownKey), "it is gone");
    let mut others = PagingKeys::default();
    others.put(PagingKey { id: 1, secret: [0; 32], created: NOW });
    assert_eq!(
        PagingState::open(&before, &others, &binding(), NOW, DAY),
        Err(Refused::Forged),
        "another cluster's key"
    );
}

#[test]
fn fields_of_a_later_release_are_passed_over() {
    let mut body = Vec::new();
    state().write_body(NOW, &mut body);
    body.extend_from_slice(&[9, 3, 0, 0, 0, 7, 7, 7]);
    assert_eq!(PagingState::parse(&body.clone().into()), Some((state(), NOW)));
    body.extend_from_slice(&[10, 1, 0, 0, 0]);
    assert_eq!(PagingState::parse(&body.into()), None, "a field without its bytes");
}

/// States of releases that did not name replicas are accepted. Those releases accept the states of
/// this one, because the new field is behind all others.
#[test]
fn a_state_without_replicas_is_good() {
    let write = |state: PagingState| {
        let mut body = Vec::new();
        state.write_body(NOW, &mut body);
        body
    };
    let before = write(PagingState { replicas: None, ..state() });
    assert_eq!(PagingState::parse(&before.clone().into()).map(|(state, _)| state.replicas), Some(None));
    let now = write(PagingState { replicas: Some(Box::new(replicas(1))), ..state() });
    let field = now.strip_prefix(&before[..]).expect("it begins the same");
    assert_eq!((field[0], &field[1..5], field.len()), (2, &[32, 0, 0, 0][..], 5 + 8 + 8 + 16));
}

#[test]
fn replicas_are_whole() {
    let body = |field: &[u8]| {
        let mut body = Vec::new();
        PagingState { replicas: None, ..state() }.write_body(NOW, &mut body);
        body.extend_from_slice(&[&[2, field.len() as u8, 0, 0, 0], field].concat());
        PagingState::parse(&body.into()).map(|(state, _)| state.replicas.map_or(0, |replicas| replicas.hosts.len()))
    };
    for (len, hosts) in [(0, None), (15, None), (16, Some(0)), (31, None), (32, Some(1)), (33, None), (64, Some(3))] {
        assert_eq!(body(&vec![7; len]), hosts, "{len} bytes");
    }
}

#[test]
fn replicas_of_a_tablet_have_read_its_parts_and_the_tablet_it_merged_into() {
    let read = LastReplicas { before: Token(0), last: Token(100), hosts: Default::default() };
    for (before, last, expected) in
        [(0, 100, true), (0, 50, true), (50, 100, true), (-100, 100, true), (-100, 0, false), (100, 200, false)]
    {
        assert_eq!(read.have_read(Token(before), Token(last)), expected, "({before}, {last}]");
    }
}

proptest! {
    #[test]
    fn parsed_paging_states_round_trip(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Some((state, issued)) = PagingState::parse(&body.into()) {
            let mut again = Vec::new();
            state.write_body(issued, &mut again);
            prop_assert_eq!(PagingState::parse(&again.into()), Some((state, issued)));
        }
    }
}
