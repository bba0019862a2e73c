//! Reads at a level, step by step, and in every order in which responses can arrive.

use super::*;
use crate::nodes::NodeView;
use crate::replica_failure::SendError;
use crate::response_tracker::{Candidate, Factors};
use model::id::HostId;
use proptest::prelude::*;
use replica::{Excess, LimitKind, LimitedBy, PageEnd, RateLimited, ReplicaError};
use std::collections::BTreeMap;
use uuid::Uuid;

fn replica(n: u8) -> TabletReplica {
    TabletReplica { host: HostId(Uuid::from_u128(n.into())), shard: 0 }
}

fn number(replica: TabletReplica) -> u8 {
    replica.host.0.as_u128() as u8
}

/// A read of replicas 1 to `copies` at a level; the first `asked` of them are asked.
fn read(copies: u8, level: Consistency, asked: u8) -> QuorumState {
    let view = |n| NodeView {
        host: replica(n).host,
        datacenter: "dc".into(),
        rack: "r".into(),
        address: [127, 0, 0, n].into(),
        down_since: None,
    };
    let nodes = Nodes::new(replica(1).host, &(1..=copies).map(view).collect::<Vec<_>>());
    let candidates: Vec<Candidate> = (1..=copies).map(|n| nodes.candidate(replica(n), false)).collect();
    let factors = Factors { total: copies.into(), by_datacenter: SmallVec::from_slice(&[(0, copies.into())]) };
    let tracker = ResponseTracker::new(level, nodes.own_datacenter(), &factors, &candidates);
    let spare = (asked + 1..=copies).map(replica).collect();
    let mut read = QuorumState::new(Rc::new(nodes), tracker, level, spare, copies.into());
    for n in 1..=asked {
        read.asked(replica(n), if n == 1 { ReadKind::Rows } else { ReadKind::Digest });
    }
    read
}

fn page(rows: u64) -> Box<Page> {
    Box::new(Page {
        rows,
        body: Bytes::from_static(b"rows"),
        last: None,
        rows_in_last: 0,
        end: PageEnd::Exhausted,
        tombstones: 0,
        examined_rows: rows,
        examined_bytes: 4,
    })
}

fn digest(of: u8) -> Digest {
    Digest { version: 1, hash: [of; 16] }
}

fn digested(of: u8) -> Result<ReplicaResponse, ReplicaFailure> {
    Ok(ReplicaResponse::Digested(page(1), digest(of)))
}

fn broken() -> Result<ReplicaResponse, ReplicaFailure> {
    Err(ReplicaFailure::Refused(ReplicaError::Storage("broken".into())))
}

fn agreed(read: &mut QuorumState) -> Option<Vec<u8>> {
    let (page, by) = read.agreed(&ClusteringOrder::new([]))?;
    assert_eq!(page.body, &b"rows"[..]);
    Some(by.into_iter().map(number).collect())
}

#[test]
fn one_replica_is_enough_for_one() {
    let mut read = read(3, Consistency::One, 1);
    assert_eq!(read.add(replica(1), ReadKind::Rows, Ok(ReplicaResponse::Page(page(1)))), Next::Enough);
    assert_eq!(agreed(&mut read), Some(vec![1]));
}

#[test]
fn rows_and_a_digest_that_are_the_same_are_a_quorum() {
    let mut read = read(3, Consistency::Quorum, 2);
    assert_eq!(read.add(replica(2), ReadKind::Digest, digested(7)), Next::Wait);
    assert_eq!(read.add(replica(1), ReadKind::Rows, digested(7)), Next::Enough);
    assert_eq!(agreed(&mut read), Some(vec![1, 2]));
}

#[test]
fn replicas_that_disagree_do_not_count() {
    let mut read = read(3, Consistency::Quorum, 2);
    read.add(replica(1), ReadKind::Rows, digested(7));
    assert_eq!(read.add(replica(2), ReadKind::Digest, digested(8)), Next::Enough);
    assert_eq!(agreed(&mut read), None);
    let answered: Vec<u8> = read.disagreed().into_iter().map(number).collect();
    assert_eq!((answered, read.tracker.received()), (vec![1, 2], 0));
}

#[test]
fn a_spare_replica_takes_the_place_of_one_that_fails() {
    let mut read = read(3, Consistency::Quorum, 2);
    assert_eq!(read.add(replica(1), ReadKind::Rows, broken()), Next::Ask(replica(3), ReadKind::Rows));
    read.asked(replica(3), ReadKind::Rows);
    assert_eq!(read.add(replica(2), ReadKind::Digest, digested(7)), Next::Wait);
    assert_eq!(read.add(replica(3), ReadKind::Rows, digested(7)), Next::Enough);
    assert_eq!(agreed(&mut read), Some(vec![3, 2]));
}

#[test]
fn a_replica_that_sent_a_digest_is_asked_for_its_rows_when_no_other_is_left() {
    let mut read = read(2, Consistency::One, 1);
    let (as_well, kind) = read.next_speculative().unwrap();
    assert_eq!((as_well, kind), (replica(2), ReadKind::Rows), "the rows are what it waits for");
    read.asked(as_well, ReadKind::Digest);
    assert_eq!(read.add(replica(2), ReadKind::Digest, digested(7)), Next::Wait);
    assert_eq!(read.add(replica(1), ReadKind::Rows, broken()), Next::AskAgain(replica(2), ReadKind::Rows));
}

fn lost() -> Result<ReplicaResponse, ReplicaFailure> {
    Err(ReplicaFailure::Send(SendError::Lost("connection reset".into())))
}

#[test]
fn a_replica_is_asked_once_more_after_a_lost_connection_if_there_is_no_spare_one() {
    let mut with_spare = read(3, Consistency::Quorum, 2);
    assert_eq!(with_spare.add(replica(1), ReadKind::Rows, lost()), Next::Ask(replica(3), ReadKind::Rows));
    for (kind, other, n) in [(ReadKind::Rows, ReadKind::Digest, 1), (ReadKind::Digest, ReadKind::Rows, 2)] {
        let mut read = read(2, Consistency::All, 2);
        assert_eq!(read.add(replica(n), kind, lost()), Next::AskAgain(replica(n), kind));
        read.asked(replica(n), kind);
        assert_eq!(read.add(replica(3 - n), other, digested(7)), Next::Wait);
        let down = Err(ReplicaFailure::Send(SendError::Down("connection refused".into())));
        assert_eq!(read.add(replica(n), kind, down), Next::Unreachable, "only once");
        let error = read.error(false);
        assert!(matches!(error, CoordinatorError::Timeout { .. }), "the first was sent: {error:?}");
    }
}

fn limited() -> Result<ReplicaResponse, ReplicaFailure> {
    let table = model::id::TableId(Uuid::from_u128(7));
    Err(ReplicaFailure::Refused(ReplicaError::RateLimited(RateLimited {
        kind: LimitKind::Read,
        table,
        partition: 1,
        excess: Excess::default(),
        by: LimitedBy::Table,
    })))
}

#[test]
fn a_refusal_by_a_rate_limit_asks_no_other_replica() {
    let mut one = read(3, Consistency::One, 1);
    assert_eq!(one.add(replica(1), ReadKind::Rows, limited()), Next::Unreachable);
    assert!(one.next_speculative().is_none());
    assert!(matches!(one.error(false), CoordinatorError::RateLimited { by_coordinator: false, .. }));
    let mut quorum = read(3, Consistency::Quorum, 2);
    assert_eq!(quorum.add(replica(2), ReadKind::Digest, limited()), Next::Unreachable);
    assert!(matches!(quorum.error(false), CoordinatorError::RateLimited { .. }));
    assert!(matches!(quorum.error(true), CoordinatorError::Timeout { .. }), "a timeout comes first");
}

#[test]
fn replicas_that_were_asked_already_may_reach_the_level_despite_a_refusal() {
    let mut read = read(3, Consistency::Quorum, 2);
    let (third, kind) = read.next_speculative().unwrap();
    read.asked(third, kind);
    assert_eq!(read.add(replica(1), ReadKind::Rows, limited()), Next::Wait);
    assert_eq!(read.add(replica(2), ReadKind::Digest, digested(7)), Next::Wait);
    assert_eq!(read.add(third, kind, digested(7)), Next::Enough);
    assert_eq!(agreed(&mut read), Some(vec![3, 2]));
}

#[test]
fn too_many_failures_fail_the_read() {
    let mut read = read(3, Consistency::Quorum, 2);
    assert_eq!(read.add(replica(2), ReadKind::Digest, broken()), Next::Ask(replica(3), ReadKind::Digest));
    read.asked(replica(3), ReadKind::Digest);
    assert_eq!(read.add(replica(3), ReadKind::Digest, broken()), Next::Unreachable);
    match read.error(false) {
        CoordinatorError::Failed { failures: 2, required: 2, received: 0, why, .. } => assert_eq!(why, "broken"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_late_replica_is_a_spare_one_again() {
    let mut read = read(3, Consistency::One, 1);
    let (second, kind) = read.next_speculative().unwrap();
    read.asked(second, kind);
    assert_eq!(read.add(second, kind, digested(7)), Next::Enough);
    read.return_unanswered();
    assert!(read.has_spare());
    // At ONE no other replica counts: the level is reached.
    assert_eq!(read.next_spare(), None);
    read.disagreed();
    assert_eq!(read.next_spare(), Some(replica(3)));
    assert_eq!(read.next_spare(), Some(replica(1)));
}

proptest! {
    /// Replicas respond, fail or are slow in any order. A read completes if enough of them respond,
    /// and otherwise fails.
    #[test]
    fn a_read_ends_well_exactly_if_enough_replicas_answer(
        copies in 1u8..=5,
        level in prop::sample::select(vec![Consistency::One, Consistency::Two, Consistency::Quorum, Consistency::All]),
        fails in prop::collection::vec(prop::bool::weighted(0.3), 5),
        order in prop::collection::vec((any::<prop::sample::Index>(), prop::bool::weighted(0.2)), 64),
    ) {
        let required = level.required(copies.into()) as u8;
        prop_assume!(required <= copies);
        let mut read = read(copies, level, required);
        let mut asked: Vec<(TabletReplica, ReadKind)> =
            (1..=required).map(|n| (replica(n), if n == 1 { ReadKind::Rows } else { ReadKind::Digest })).collect();
        let mut times: BTreeMap<u8, u8> = asked.iter().map(|(replica, _)| (number(*replica), 1)).collect();
        let mut end = None;
        for (which, slow) in order {
            if slow && let Some((replica, kind)) = read.next_speculative() {
                read.asked(replica, kind);
                *times.entry(number(replica)).or_default() += 1;
                asked.push((replica, kind));
            }
            let (answering, kind) = asked.remove(which.index(asked.len()));
            let answer = match (fails[usize::from(number(answering)) - 1], kind, required) {
                (true, ..) => broken(),
                (false, ReadKind::Rows, 1) => Ok(ReplicaResponse::Page(page(1))),
                _ => digested(7),
            };
            match read.add(answering, kind, answer) {
                Next::Wait => prop_assert!(!asked.is_empty(), "it waits for a replica"),
                Next::AskAgain(replica, _) => {
                    prop_assert_eq!(times.insert(number(replica), 2), Some(1), "it has sent a digest");
                    read.asked(replica, ReadKind::Rows);
                    asked.push((replica, ReadKind::Rows));
                }
                Next::Ask(replica, kind) => {
                    prop_assert!(!times.contains_key(&number(replica)), "it was not asked yet");
                    read.asked(replica, kind);
                    *times.entry(number(replica)).or_default() += 1;
                    asked.push((replica, kind));
                }
                ended => {
                    end = Some(ended);
                    break;
                }
            }
        }
        let answer = fails[..copies.into()].iter().filter(|fails| !**fails).count();
        let expected = if answer >= usize::from(required) { Next::Enough } else { Next::Unreachable };
        prop_assert_eq!(end, Some(expected));
        prop_assert!(times.values().all(|times| *times <= 2), "once, and once more for the rows: {:?}", times);
        if expected == Next::Enough {
            let by = agreed(&mut read).expect("all have the same");
            prop_assert!(by.len() >= usize::from(required) && by.iter().all(|n| !fails[usize::from(*n) - 1]));
        }
    }
}

#[test]
fn a_spare_replica_takes_the_place_of_one_that_is_not_repaired() {
    let failure = || ReplicaFailure::Refused(ReplicaError::Timeout);
    let reconciled = |copies: u8| {
        let mut read = read(copies, Consistency::Quorum, 2);
        for (n, kind, value) in [(1, ReadKind::Rows, 1), (2, ReadKind::Digest, 2)] {
            let _ = read.add(replica(n), kind, Ok(ReplicaResponse::Digested(page(1), digest(value))));
        }
        let sources = read.disagreed();
        sources.iter().for_each(|source| read.counts(*source));
        read.withdraw(&[replica(2)]);
        (read, sources)
    };
    // The second replica lacks something, and was repaired or not.
    let (mut state, sources) = reconciled(3);
    let mut tracker = state.tracker.clone();
    tracker.answered(state.nodes.datacenter(replica(2).host));
    let outcome = Repaired { tracker, missed: Sources::new(), failures: Vec::new() };
    assert_eq!(state.repaired(&sources, outcome), AfterRepair::Enough);

    let missed = |state: &QuorumState| {
        let mut tracker = state.tracker.clone();
        tracker.failed(state.nodes.datacenter(replica(2).host));
        let (missed, failures) = (Sources::from_slice(&[replica(2)]), vec![(replica(2), failure())]);
        Repaired { tracker, missed, failures }
    };
    let (mut state, sources) = reconciled(3);
    let outcome = missed(&state);
    let again = Sources::from_slice(&[replica(1), replica(3)]);
    assert_eq!(state.repaired(&sources, outcome), AfterRepair::Merge(again));
    let outcome = missed(&state);
    assert_eq!(state.repaired(&sources, outcome), AfterRepair::Unreachable, "no spare replica is left");
}
