//! The cost of a page inside the server: one partition is written as the case says, and read page
//! by page from the caches.
//!
//! The partition has `rows` rows of `value` bytes, and `tombstones` range tombstones before its
//! first row. The rows are distributed over `sstables` sstables so that each page needs all of
//! them. Each query is read for `pages` pages, or to its end.

use crate::harness::{Harness, LAYERS, MEMORY, page_frame};
use bytes::Bytes;
use cql::{Error, ResultKind, StatementResult};
use replica::ReplicaConfig;
use server::protocol::Frames;
use server::protocol::outbox::Outbox;
use std::cell::RefCell;
use std::path::Path;

/// The case to measure.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Rows of the partition.
    pub rows: u32,
    /// Bytes of a row's value.
    pub value: usize,
    /// Sstables over which the rows are spread.
    pub sstables: u32,
    /// Range tombstones before the first row.
    pub tombstones: u32,
    /// Rows of a page.
    pub page_size: i32,
    /// The pages of a query that are read; 0 for all.
    pub pages: u64,
    /// The number of queries, after one that fills the caches.
    pub queries: u64,
    /// Whether the querier cache is off.
    pub stateless: bool,
    /// Whether rows are read in descending order.
    pub reversed: bool,
}

/// The counts, without the first query.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counted {
    /// Pages.
    pub pages: u64,
    /// Rows.
    pub rows: u64,
    /// Index pages of sstables that first pages requested, cached or not.
    pub first_index_reads: u64,
    /// The same for later pages.
    pub later_index_reads: u64,
    /// Later pages that looked for a querier.
    pub lookups: u64,
    /// Later pages that resumed a querier.
    pub reused: u64,
    /// Allocations.
    pub allocations: u64,
    /// Nanoseconds of wall-clock time.
    pub nanos: u64,
}

/// Measures a case in a node on `dir`.
pub async fn measure(dir: &Path, case: Case) -> Counted {
    let replica = ReplicaConfig { querier_cache: !case.stateless, ..ReplicaConfig::with_memory(MEMORY) };
    let harness = Harness::start_with(dir, replica).await;
    harness
        .run("CREATE KEYSPACE b WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}")
        .await;
    harness.run("CREATE TABLE b.p (pk bigint, ck int, v blob, PRIMARY KEY (pk, ck))").await;
    fill(&harness, &case).await;
    let order = if case.reversed { " ORDER BY ck DESC" } else { "" };
    let read = harness.prepare(&format!("SELECT ck, v FROM b.p WHERE pk = ?{order}")).await;
    query(&harness, &Case { pages: 0, ..case }, &read, &mut Counted::default()).await;
    let before = LAYERS.replica.get().metrics().queriers;
    let mut counted = Counted::default();
    let began = std::time::Instant::now();
    for _ in 0..case.queries {
        query(&harness, &case, &read, &mut counted).await;
    }
    counted.nanos = began.elapsed().as_nanos() as u64;
    let after = LAYERS.replica.get().metrics().queriers;
    counted.lookups = after.lookups - before.lookups;
    counted.reused = after.reused() - before.reused();
    counted
}

/// Bytes that do not compress.
fn value(seed: u32, len: usize) -> Vec<u8> {
    let mut state = u64::from(seed) << 1 | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

async fn fill(harness: &Harness, case: &Case) {
    let insert = harness.prepare("INSERT INTO b.p (pk, ck, v) VALUES (?, ?, ?)").await;
    let delete = harness.prepare("DELETE FROM b.p WHERE pk = ? AND ck >= ? AND ck < ?").await;
    let (frames, out) = (RefCell::new(Frames::new(1 << 20)), RefCell::new(Outbox::default()));
    let pk = 1i64.to_be_bytes();
    let engine = LAYERS.engine.get();
    for part in 0..case.sstables {
        if part == 0 {
            for n in 0..case.tombstones as i32 {
                let from = 2 * (n - case.tombstones as i32);
                let values: [&[u8]; 3] = [&pk, &from.to_be_bytes(), &(from + 1).to_be_bytes()];
                frames.borrow_mut().push(&page_frame(1, &delete, &values, None, None));
                harness.serve(&frames, &out, succeeds).await;
            }
        }
        for ck in (part..case.rows).step_by(case.sstables as usize) {
            let values: [&[u8]; 3] = [&pk, &ck.to_be_bytes(), &value(ck, case.value)];
            frames.borrow_mut().push(&page_frame(1, &insert, &values, None, None));
            harness.serve(&frames, &out, succeeds).await;
        }
        out.borrow_mut().clear();
        engine.flush(None).await.expect("the memtable is flushed");
    }
    assert!(engine.metrics().sstables >= u64::from(case.sstables), "every part is an sstable");
}

fn succeeds(answer: &Result<StatementResult, Error>) {
    assert!(answer.is_ok(), "{answer:?}");
}

/// The number of rows, and where the next page begins.
fn page_of(answer: &Result<StatementResult, Error>) -> (u32, Option<Bytes>) {
    match answer {
        Ok(StatementResult { kind: ResultKind::Rows(page), .. }) => (page.count, page.paging_state.clone()),
        other => panic!("a SELECT answers rows: {other:?}"),
    }
}

async fn query(harness: &Harness, case: &Case, read: &[u8; 16], counted: &mut Counted) {
    let (frames, out) = (RefCell::new(Frames::new(1 << 20)), RefCell::new(Outbox::default()));
    let engine = LAYERS.engine.get();
    let index_reads = || engine.metrics().cache.index_reads;
    let pk = 1i64.to_be_bytes();
    let mut state = None;
    let mut index = index_reads();
    let (mut pages, mut rows) = (0, 0);
    loop {
        let frame = page_frame(1, read, &[&pk], Some(case.page_size), state.as_deref());
        frames.borrow_mut().push(&frame);
        let allocations = crate::allocations::count();
        let (count, next) = harness.serve(&frames, &out, page_of).await;
        counted.allocations += crate::allocations::count() - allocations;
        out.borrow_mut().clear();
        if pages == 0 {
            let now = index_reads();
            counted.first_index_reads += now - index;
            index = now;
        }
        pages += 1;
        rows += u64::from(count);
        state = next;
        if state.is_none() || pages == case.pages {
            break;
        }
    }
    assert!(case.pages > 0 || rows == u64::from(case.rows), "{rows} rows were read, not {}", case.rows);
    counted.later_index_reads += index_reads() - index;
    counted.pages += pages;
    counted.rows += rows;
}
