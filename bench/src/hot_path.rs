//! The cost of a prepared point read and a prepared one-row write inside the server, from the
//! received frame to the encoded answer.
//!
//!     hot-path CASE COUNT           prints the allocations of an operation as JSON; callgrind
//!                                   gives instructions by the difference of two counts
//!     hot-path page NAME=VALUE...   the same for pages of one partition; the names are the fields
//!                                   of `paging::Case` (`bench/paging` runs it under callgrind)
//!
//! Cases: `write`; `read` of a row in the memtable; `cached`, of a row in the row cache;
//! `clustered`, of a row in the page cache, by partition key and clustering key. With rate limits:
//! `limited` is `cached` with a limit that is never reached; `refusal` and `refused-write` have a
//! limit of 0, so each request is refused. 32 requests are in progress at a time, as when a
//! connection delivers a batch. A row has a bigint key and a 200 byte blob.

use bench::harness::{Harness, LAYERS, execute_frame};
use bench::paging::{self, Case};
use bytes::Bytes;
use cql::{Error, StatementResult};
use rt::net::AsyncWrite;
use server::protocol::Frames;
use server::protocol::outbox::Outbox;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

#[global_allocator]
static ALLOCATOR: bench::allocations::Counting = bench::allocations::Counting;

const ROWS: u64 = 1000;
const BATCH: u64 = 32;

/// The cases with a rate limit, and their limits.
const LIMITED: [(&str, &str); 3] = [
    ("limited", "{'max_reads_per_second': 1000000000}"),
    ("refusal", "{'max_reads_per_second': 0}"),
    ("refused-write", "{'max_writes_per_second': 0}"),
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let case = arguments.next().unwrap_or_else(|| "read".into());
    if case == "page" {
        return pages(arguments);
    }
    let limit = LIMITED.iter().find(|(name, _)| *name == case).map(|(_, limit)| *limit);
    let is_known = limit.is_some() || ["write", "read", "cached", "clustered"].contains(&case.as_str());
    assert!(is_known, "no such case: {case}");
    let count: u64 = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(10_000);
    let dir = std::env::temp_dir().join(format!("messina-hot-path-{}", std::process::id()));
    let clustered = case == "clustered";
    rt::block_on(async {
        let harness = Harness::start(&dir).await;
        harness
            .run("CREATE KEYSPACE b WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}")
            .await;
        let statements = match clustered {
            false => [
                "CREATE TABLE b.t (pk bigint PRIMARY KEY, v blob)",
                "INSERT INTO b.t (pk, v) VALUES (?, ?)",
                "SELECT v FROM b.t WHERE pk = ?",
            ],
            true => [
                "CREATE TABLE b.t (pk bigint, ck bigint, v blob, PRIMARY KEY (pk, ck))",
                "INSERT INTO b.t (pk, ck, v) VALUES (?, ?, ?)",
                "SELECT v FROM b.t WHERE pk = ? AND ck = ?",
            ],
        };
        harness.run(statements[0]).await;
        let write = harness.prepare(statements[1]).await;
        let read = harness.prepare(statements[2]).await;
        let value = [7u8; 200];
        // The client's frames, made once: their making is no work of the server.
        let made: Vec<[Bytes; 2]> = (0..ROWS)
            .map(|i| {
                let pk = ((i * 7919) % ROWS).to_be_bytes();
                let key: &[&[u8]] = if clustered { &[&pk, &pk] } else { &[&pk] };
                [execute_frame(1, &write, &[key, &[&value[..]]].concat()), execute_frame(1, &read, key)]
            })
            .collect();
        let frames = RefCell::new(Frames::new(1 << 20));
        let out = RefCell::new(Outbox::default());
        let refused = Rc::new(Cell::new(false));
        let mut workers = Workers::new(&harness, &frames, &out, &refused);
        let mut allocations = 0;
        let mut batch = async |from: u64, reads: bool| {
            for i in from..from + BATCH {
                frames.borrow_mut().push(&made[(i % ROWS) as usize][usize::from(reads)]);
            }
            let before = bench::allocations::count();
            workers.run(BATCH).await;
            let after = bench::allocations::count();
            // As after writing to a socket: the buffer stays.
            let flushed =
                out.borrow_mut().flush(&mut Client, &mut false, &mut Context::from_waker(Waker::noop()), |_| ());
            assert!(matches!(flushed, Ok(true)), "a client that reads everything");
            after - before
        };
        for from in (0..ROWS).step_by(BATCH as usize) {
            batch(from, false).await;
        }
        if clustered || case == "cached" || limit.is_some() {
            LAYERS.engine.get().flush(None).await.expect("the memtable is flushed");
            for from in (0..ROWS).step_by(BATCH as usize) {
                batch(from, true).await;
            }
        }
        let reads = !case.contains("write");
        if let Some(limit) = limit {
            harness.run(&format!("ALTER TABLE b.t WITH per_partition_rate_limit = {limit}")).await;
            // Plans the statements for the new version of the table.
            harness.prepare(statements[1]).await;
            harness.prepare(statements[2]).await;
            refused.set(case != "limited");
            batch(0, reads).await;
        }
        let began = std::time::Instant::now();
        for from in (0..count).step_by(BATCH as usize) {
            allocations += batch(from, reads).await;
        }
        let each = |total: f64| total / count as f64;
        println!(
            "{{\"case\": \"{case}\", \"count\": {count}, \"allocations\": {:.4}, \"micros\": {:.3}, \"future_bytes\": {}}}",
            each(allocations as f64),
            each(began.elapsed().as_secs_f64() * 1e6),
            harness.request_size(),
        );
    });
    let _ = std::fs::remove_dir_all(&dir);
}

/// Long-lived futures, each of which serves one request after the other, as the workers of a
/// connection do. So the figures have the cost of a request, and not that of creating and moving
/// futures.
struct Workers<'a> {
    each: Vec<Pin<Box<dyn Future<Output = ()> + 'a>>>,
    /// The number of requests that no worker has taken yet, and of those without an answer.
    waiting: Rc<Cell<u64>>,
    unanswered: Rc<Cell<u64>>,
}

impl<'a> Workers<'a> {
    /// `refused`: whether each request must be refused by a rate limit. Otherwise it must succeed.
    fn new(
        harness: &'a Harness,
        frames: &'a RefCell<Frames>,
        out: &'a RefCell<Outbox>,
        refused: &Rc<Cell<bool>>,
    ) -> Self {
        let (waiting, unanswered) = <(Rc<Cell<u64>>, Rc<Cell<u64>>)>::default();
        let worker = |_| -> Pin<Box<dyn Future<Output = ()> + 'a>> {
            let (waiting, unanswered, refused) = (waiting.clone(), unanswered.clone(), refused.clone());
            Box::pin(async move {
                loop {
                    poll_fn(|_| if waiting.get() > 0 { Poll::Ready(()) } else { Poll::Pending }).await;
                    waiting.set(waiting.get() - 1);
                    let check = |answer: &Result<StatementResult, Error>| match answer {
                        Ok(_) => assert!(!refused.get(), "the request exceeds its limit"),
                        Err(Error::RateLimit { .. }) if refused.get() => {}
                        Err(error) => panic!("{error}"),
                    };
                    pin!(harness.serve(frames, out, check)).await;
                    unanswered.set(unanswered.get() - 1);
                }
            })
        };
        Workers { each: (0..BATCH).map(worker).collect(), waiting, unanswered }
    }

    /// Serves the next `count` frames.
    async fn run(&mut self, count: u64) {
        self.waiting.set(count);
        self.unanswered.set(count);
        poll_fn(|cx| {
            for worker in &mut self.each {
                if worker.as_mut().poll(cx).is_pending() && self.unanswered.get() == 0 {
                    return Poll::Ready(());
                }
            }
            Poll::Pending
        })
        .await;
    }
}

/// The case with the fields that the arguments set.
fn case_of(arguments: impl Iterator<Item = String>) -> Case {
    let mut case = Case {
        rows: 10_000,
        value: 200,
        sstables: 1,
        tombstones: 0,
        page_size: 100,
        pages: 0,
        queries: 1,
        stateless: false,
        reversed: false,
    };
    for argument in arguments {
        let pair = argument.split_once('=').and_then(|(name, value)| Some((name, value.parse::<u32>().ok()?)));
        match pair {
            Some(("rows", n)) => case.rows = n,
            Some(("value", n)) => case.value = n as usize,
            Some(("sstables", n)) if n > 0 => case.sstables = n,
            Some(("tombstones", n)) => case.tombstones = n,
            Some(("page_size", n)) => case.page_size = n as i32,
            Some(("pages", n)) => case.pages = n.into(),
            Some(("queries", n)) => case.queries = n.into(),
            Some(("stateless", n)) => case.stateless = n != 0,
            Some(("reversed", n)) => case.reversed = n != 0,
            _ => panic!("not understood: {argument}"),
        }
    }
    case
}

fn pages(arguments: impl Iterator<Item = String>) {
    let case = case_of(arguments);
    let dir = std::env::temp_dir().join(format!("messina-hot-path-{}", std::process::id()));
    let counted = rt::block_on(paging::measure(&dir, case));
    println!(
        "{{\"case\": \"page\", \"pages\": {}, \"rows\": {}, \"first_index_reads\": {}, \"later_index_reads\": {}, \
         \"lookups\": {}, \"reused\": {}, \"allocations\": {}, \"nanos\": {}}}",
        counted.pages,
        counted.rows,
        counted.first_index_reads,
        counted.later_index_reads,
        counted.lookups,
        counted.reused,
        counted.allocations,
        counted.nanos,
    );
    let _ = std::fs::remove_dir_all(&dir);
}

/// A client that reads everything at once.
struct Client;

impl AsyncWrite for Client {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
