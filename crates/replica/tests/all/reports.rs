//! Reports of what arrives at other coordinators.

use crate::support::{Scratch, engine, schema};
use model::HostId;
use replica::arrivals::{Arrival, Origin};
use replica::limiter::LimitKey;
use replica::{LimitKind, Replica, ReplicaConfig};
use uuid::Uuid;

#[test]
fn a_report_of_tables_without_limits_costs_no_memory() {
    rt::block_on(async {
        let scratch = Scratch::new("reports");
        let replica = Replica::new(engine(&scratch).await, ReplicaConfig::with_memory(64 << 20));
        let unknown = Uuid::from_u128(9);
        let reported = [schema(1).id.0, unknown].map(|table| Arrival {
            key: LimitKey { token: 1, table: table.as_u128(), kind: LimitKind::Read },
            rate: 5_000,
        });
        let from = Origin { host: HostId(Uuid::from_u128(1)), shard: 0 };
        assert_eq!(replica.take_arrivals(from, reported.to_vec()), [0, 0]);
        assert_eq!(replica.metrics().rate_limits.bytes, 0);
    });
}
