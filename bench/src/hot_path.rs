//! The cost of a prepared point read and a prepared one-row write inside the server, from decoded frame to encoded answer.
//!
//!     hot-path read|write COUNT         prints allocations an operation as JSON; under callgrind, instructions come from
//!                                       the difference of two counts (see `bench/hot-path/run`)
//!
//! 32 requests are under way at a time, as when a connection delivers a batch. Rows have a bigint key and a 200 byte blob.

use bench::harness::{Harness, execute_frame};
use server::protocol::Frames;
use server::protocol::outbox::Outbox;
use std::cell::RefCell;

#[global_allocator]
static ALLOCATOR: bench::allocations::Counting = bench::allocations::Counting;

const ROWS: u64 = 1000;
const BATCH: u64 = 32;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let case = arguments.next().unwrap_or_else(|| "read".into());
    let count: u64 = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(10_000);
    let dir = std::env::temp_dir().join(format!("messina-hot-path-{}", std::process::id()));
    rt::block_on(async {
        let harness = Harness::start(&dir).await;
        harness
            .run("CREATE KEYSPACE b WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}")
            .await;
        harness.run("CREATE TABLE b.t (pk bigint PRIMARY KEY, v blob)").await;
        let write = harness.prepare("INSERT INTO b.t (pk, v) VALUES (?, ?)").await;
        let read = harness.prepare("SELECT v FROM b.t WHERE pk = ?").await;
        let value = [7u8; 200];
        let frames = RefCell::new(Frames::new(1 << 20));
        let out = RefCell::new(Outbox::default());
        let mut allocations = 0;
        let batch = async |from: u64, reads: bool| {
            for i in from..from + BATCH {
                let pk = ((i * 7919) % ROWS).to_be_bytes();
                let frame =
                    if reads { execute_frame(1, &read, &[&pk]) } else { execute_frame(1, &write, &[&pk, &value]) };
                frames.borrow_mut().push(&frame);
            }
            let before = bench::allocations::count();
            futures_util::future::join_all((0..BATCH).map(|_| harness.serve(&frames, &out))).await;
            let after = bench::allocations::count();
            out.borrow_mut().clear();
            after - before
        };
        for from in (0..ROWS).step_by(BATCH as usize) {
            batch(from, false).await;
        }
        let began = std::time::Instant::now();
        for from in (0..count).step_by(BATCH as usize) {
            allocations += batch(from, case == "read").await;
        }
        let each = |total: f64| total / count as f64;
        println!(
            "{{\"case\": \"{case}\", \"count\": {count}, \"allocations\": {:.1}, \"micros\": {:.3}}}",
            each(allocations as f64),
            each(began.elapsed().as_secs_f64() * 1e6),
        );
    });
    let _ = std::fs::remove_dir_all(&dir);
}
