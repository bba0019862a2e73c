//! The partitions that are remembered.

use super::*;
use model::id::SchemaVersion;
use model::key::DecoratedKey;
use model::range::{PartitionRange, Slice};
use replica::{Context, Limits, Output};
use rt::sync::{Cancel, Deadline};
use rt::time::Duration;
use smallvec::smallvec;
use uuid::Uuid;

fn options() -> RequestOptions {
    let context = Context {
        class: Class::User,
        deadline: Deadline::after(Duration::from_secs(60)),
        cancel: Cancel::new(),
        trace: None,
        metadata_number: 0,
        large_data: None,
        rate_limit: RateLimitMode::Off,
    };
    RequestOptions { context, consistency: Consistency::Quorum }
}

fn command(token: i64, output: &Rc<Output>) -> Rc<ReadCommand> {
    let key = DecoratedKey { token: Token(token), key: token.to_be_bytes().to_vec().into() };
    let most = u64::MAX;
    Rc::new(ReadCommand {
        table: TableId(Uuid::from_u128(7)),
        schema_version: SchemaVersion(Uuid::from_u128(8)),
        ranges: smallvec![PartitionRange::singular(&key)],
        slice: Rc::new(Slice::full()),
        output: output.clone(),
        limits: Limits {
            rows: most,
            per_partition: most,
            bytes: most,
            tombstones: most,
            paged: true,
            unpaged_bytes: most,
        },
        now: 1,
        resumed_rows: 0,
        bypass_cache: false,
        query: None,
        first_page: true,
        ends_with_rows: false,
    })
}

/// Starts a read that must send its own requests.
fn sends(coalescing: &Coalescing, command: &Rc<ReadCommand>) -> ReadInFlight {
    match coalescing.start(command, &options(), false) {
        ReadStart::Sends(Some(read)) => read,
        _ => panic!("the read sends its own requests"),
    }
}

fn end(mut read: ReadInFlight) {
    let page = QuorumPage { page: Box::default(), has_more: false, by: None };
    read.share(&Ok(page), true, Vec::new());
}

#[test]
fn only_partitions_with_concurrent_reads_are_kept_up_to_a_limit() {
    rt::block_on(async {
        let (coalescing, output) = (Coalescing::default(), Rc::new(Output::new(vec![], false, false)));
        let counts = || {
            let partitions = coalescing.0.borrow();
            let idle = partitions.by_id.values().filter(|partition| partition.reads == 0).count();
            assert_eq!(partitions.remembered, idle);
            (partitions.by_id.len(), idle)
        };
        for token in 0..1_000 {
            end(sends(&coalescing, &command(token, &output)));
        }
        assert_eq!(counts(), (0, 0));
        let held = sends(&coalescing, &command(-1, &output));
        for token in 0..1_000 {
            let command = command(token, &output);
            let together = [sends(&coalescing, &command), sends(&coalescing, &command)];
            together.into_iter().for_each(end);
            let (all, idle) = counts();
            assert!(idle <= MOST_REMEMBERED && all == idle + 1, "{all} {idle}");
        }
        // The next read of a remembered partition leads a group, and has no followers.
        let command = command(999, &output);
        let mut leader = sends(&coalescing, &command);
        assert!(leader.leads && leader.gather_followers().await.is_empty());
        let before = counts();
        end(leader);
        assert_eq!(counts(), (before.0 - 1, before.1), "it came alone");
        drop(held);
    });
}
