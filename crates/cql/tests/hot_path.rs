//! The allocations of a prepared point read and of a one-row write, from the entry of the query
//! processor down to the memtable and back.
//!
//! The bounds are limits for the entire path, slightly above the measured values. A regression
//! shows as a count, not as a time.
//!
//! It is a program of its own, because its global allocator counts.

#[path = "all/support/mod.rs"]
mod support;

use bytes::Bytes;
use cql::api::{BoundValue, BoundValues};
use cql::{QueryParams, ResultKind};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use support::with_node;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: everything is passed on to the system's allocator.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller vouches.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller vouches.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller vouches.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ROUNDS: u64 = 200;

#[test]
fn allocations_of_a_request() {
    with_node("hot_path", |session| async move {
        session.use_keyspace("ks").await;
        session.ok("CREATE TABLE t (key blob PRIMARY KEY, a blob, b blob, c blob)").await;
        session.ok("CREATE TABLE ck (p blob, c int, v blob, PRIMARY KEY (p, c))").await;
        let prepare = async |text: &str| session.processor.prepare(&session.client, text, None).await.expect(text);
        let frame = Bytes::from(vec![7u8; 256]);
        let value = |at: usize, len: usize| BoundValue::Value(frame.slice(at..at + len));
        let cases = [
            (
                "INSERT INTO t (key, a, b, c) VALUES (?, ?, ?, ?)",
                vec![value(0, 16), value(16, 50), value(66, 50), value(116, 50)],
                14,
            ),
            ("SELECT key, a, b, c FROM t WHERE key = ?", vec![value(0, 16)], 14),
            ("INSERT INTO ck (p, c, v) VALUES (?, ?, ?)", vec![value(0, 16), value(16, 4), value(66, 50)], 14),
            ("SELECT * FROM ck WHERE p = ? AND c = ?", vec![value(0, 16), value(16, 4)], 14),
        ];
        for (text, values, bound) in cases {
            let prepared = prepare(text).await;
            let params = QueryParams {
                values: BoundValues::Positional(values.into_iter().collect()),
                page_size: Some(5000),
                ..QueryParams::default()
            };
            let mut before = 0;
            for round in 0..2 * ROUNDS {
                if round == ROUNDS {
                    before = ALLOCATIONS.get();
                }
                let answer = session.processor.execute(&session.client, &prepared.id, &params).await.expect(text);
                if let ResultKind::Rows(rows) = &answer.kind {
                    assert_eq!(rows.count, 1);
                }
            }
            let each = (ALLOCATIONS.get() - before) as f64 / ROUNDS as f64;
            println!("{each:6.1} allocations: {text}");
            assert!(each <= f64::from(bound), "{text}: {each} allocations");
        }
    });
}
