//! Paging states that a client may send: damaged, forged, foreign, expired. None may be accepted,
//! and none may make a parser panic, even past the authentication.

use crate::damage;
use bytes::Bytes;
use cluster::metadata::{PagingKey, PagingKeys};
use coordinator::{Binding, LastReplicas, MAX_STATE_BYTES, PagingState, Refused, StatementHash};
use model::id::{HostId, QueryId, TableId};
use model::key::Clustering;
use model::token::Token;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use replica::{Position, Region};
use std::time::Duration;

/// The moment at which everything here happens, in seconds since the epoch.
const NOW: i64 = 1_800_000_000;
const EXPIRY: Duration = Duration::from_secs(24 * 3600);
/// The keys' numbers.
const KEYS: [u32; 3] = [7, 8, 9];

/// A cluster's keys, and a statement's binding.
pub struct Fixture {
    keys: PagingKeys,
    binding: Binding,
}

impl Default for Fixture {
    fn default() -> Self {
        let mut keys = PagingKeys::default();
        for id in KEYS {
            keys.put(PagingKey { id, secret: [id as u8; 32], created: NOW });
        }
        let binding = Binding {
            table: TableId::from_bytes([2; 16]),
            role: Some("somebody".to_owned()),
            statement: StatementHash([3; 32]),
        };
        Fixture { keys, binding }
    }
}

fn state(n: u8) -> PagingState {
    PagingState {
        query: QueryId::from_bytes([n; 16]),
        remaining: u64::MAX,
        position: Position {
            key: Bytes::from(vec![n; 4 + usize::from(n)]),
            region: Region::Clustered,
            prefix: Clustering::from_components([&[n; 8][..]]),
            weight: 0,
        },
        rows_in_last: u64::from(n),
        replicas: Some(Box::new(LastReplicas {
            before: Token(-1),
            last: Token(i64::from(n)),
            hosts: (0..n % 4).map(|host| HostId::from_bytes([host; 16])).collect(),
        })),
        processor_state: Bytes::from_static(&[b'F', 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, b'k']),
    }
}

impl Fixture {
    /// A state that must be taken: the corpus has it.
    pub fn good(&self) -> Bytes {
        state(1).seal(&self.keys, &self.binding, NOW)
    }

    /// What becomes of a blob.
    pub fn open(&self, bytes: &Bytes) -> Result<PagingState, Refused> {
        PagingState::open(bytes, &self.keys, &self.binding, NOW, EXPIRY)
    }

    /// One that must be refused.
    fn wrong(&self, rng: &mut SmallRng) -> Bytes {
        let n = rng.gen_range(0..40);
        let other = |binding: Binding| state(n).seal(&self.keys, &binding, NOW);
        match rng.gen_range(0..10) {
            0 => other(Binding { table: TableId::from_bytes(rng.r#gen()), ..self.binding.clone() }),
            1 => other(Binding { role: None, ..self.binding.clone() }),
            2 => other(Binding { statement: StatementHash(rng.r#gen()), ..self.binding.clone() }),
            3 => state(n).seal(&self.keys, &self.binding, NOW - EXPIRY.as_secs() as i64 - 1 - i64::from(n)),
            4 => {
                let mut strange = PagingKeys::default();
                strange.put(PagingKey { id: KEYS[rng.gen_range(0..3)], secret: rng.r#gen(), created: NOW });
                state(n).seal(&strange, &self.binding, NOW)
            }
            // The right head, and a tag and a body of one's own.
            5 => {
                let mut forged = vec![2];
                forged.extend_from_slice(&KEYS[rng.gen_range(0..3)].to_le_bytes());
                forged.extend_from_slice(&rng.r#gen::<[u8; 16]>());
                state(n).write_body(NOW, &mut forged);
                forged.into()
            }
            // The tag of one on the body of another.
            6 => {
                let (a, b) =
                    (state(n).seal(&self.keys, &self.binding, NOW), state(n + 1).seal(&self.keys, &self.binding, NOW));
                [&a[..21], &b[21..]].concat().into()
            }
            7 => {
                let mut noise = vec![0; rng.gen_range(0..200)];
                rng.fill(&mut noise[..]);
                if let Some(first) = noise.first_mut() {
                    *first = 2;
                }
                noise.into()
            }
            _ => {
                let good = state(n).seal(&self.keys, &self.binding, NOW);
                let mut bytes = good.to_vec();
                while bytes == good {
                    damage(&mut bytes, rng);
                }
                bytes.into()
            }
        }
    }

    /// Makes this many wrong states and has each refused.
    pub fn refuse(&self, count: u64, seed: u64) {
        let mut rng = SmallRng::seed_from_u64(seed);
        for n in 0..count {
            let bytes = self.wrong(&mut rng);
            assert!(self.open(&bytes).is_err(), "number {n} of seed {seed} was taken: {bytes:02x?}");
        }
        let huge = Bytes::from(vec![2; MAX_STATE_BYTES + 1]);
        assert_eq!(self.open(&huge), Err(Refused::Foreign));
    }
}

/// The target: the bytes are an entire state, the part after the authentication, or the query
/// processor's part.
pub fn run(bytes: &[u8]) {
    let fixture = Fixture::default();
    let bytes = Bytes::copy_from_slice(bytes);
    if fixture.open(&bytes).is_ok() {
        assert_eq!(bytes, fixture.good(), "a forged state was accepted");
    }
    for body in [bytes.clone(), bytes.slice(bytes.len().min(21)..)] {
        if let Some((state, issued)) = PagingState::parse(&body) {
            let mut again = Vec::new();
            state.write_body(issued, &mut again);
            assert_eq!(PagingState::parse(&again.into()), Some((state, issued)));
        }
    }
    cql::select::pager::fuzz_states(&bytes);
}
