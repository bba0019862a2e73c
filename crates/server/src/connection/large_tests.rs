//! Large requests that do not arrive completely, and large answers that are not read.

use super::memory::Held;
use super::segment_tests::Speaker;
use super::tests::{limits, query, query_body, raw, run};
use super::transport::Limits;
use crate::protocol::Opcode;
use crate::protocol::segment::Form;
use rt::time::{Duration, timeout};
use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

const OVERLOADED: i32 = 0x1001;

/// A query of about `len` bytes.
fn long_query(stream: i16, len: usize) -> Vec<u8> {
    raw(4, 0, stream, Opcode::Query as u8, &query_body(&format!("warn {}", "x".repeat(len))))
}

#[test]
fn an_announced_request_holds_no_memory_before_some_of_it_comes() {
    run(limits(), |world| async move {
        let memory = world.server.transport.memory.clone();
        let mut silent = Vec::new();
        for _ in 0..20 {
            let mut client = world.connect();
            client.start(&[]).await;
            client.send(&long_query(1, 900_000)[..9]).await;
            silent.push(client);
        }
        for _ in 0..1000 {
            rt::task::yield_now().await;
        }
        assert_eq!((memory.used(), memory.waits()), (0, 0));
        let mut client = world.connect();
        client.start(&[]).await;
        let answer = timeout(Duration::from_secs(1), client.ask(&long_query(2, 900_000))).await;
        assert_eq!(answer.expect("nothing to wait for").stream, 2);
        drop(silent);
    });
}

/// Compressed segments: a few bytes of the socket become megabytes.
#[test]
fn compressed_segments_of_a_large_request_wait_for_its_memory() {
    run(limits(), |world| async move {
        let memory = world.server.transport.memory.clone();
        let mut charges = Vec::new();
        // All memory for large requests.
        while let Poll::Ready(charge) =
            memory.poll_reserve(&mut None, memory.limit() / 8, &mut Context::from_waker(Waker::noop()))
        {
            charges.push(charge);
        }
        let used = memory.used();
        let mut client = Speaker::start(&world, Some(Form::Lz4), &[]).await;
        let mut body = query_body(&format!("warn {}", "x".repeat(900_000)));
        body.extend([0, 0, 0]);
        client.send(&raw(5, 0, 1, Opcode::Query as u8, &body)).await;
        while !memory.has_waiting() {
            rt::task::yield_now().await;
        }
        assert_eq!(memory.used(), used);
        drop(charges);
        let answer = timeout(Duration::from_secs(20), client.receive_or_end()).await;
        assert_eq!(answer.expect("its turn comes").expect("an answer").stream, 1);
        for _ in 0..1000 {
            rt::task::yield_now().await;
        }
        assert_eq!(memory.used(), 0);
    });
}

#[test]
fn a_large_request_that_stalls_gives_way_to_others() {
    let limits = Limits { large_frame_step: Duration::from_millis(100), ..limits() };
    run(limits, |world| async move {
        let mut stalls = world.connect();
        stalls.start(&[]).await;
        stalls.send(&long_query(1, 900_000)[..100_000]).await;
        while world.server.transport.memory.used() == 0 {
            rt::task::yield_now().await;
        }
        let mut client = world.connect();
        client.start(&[]).await;
        let request = long_query(2, 900_000);
        let (answer, refused) = tokio::join!(
            timeout(Duration::from_secs(20), client.ask(&request)),
            timeout(Duration::from_secs(20), stalls.receive())
        );
        assert_eq!(answer.expect("its turn comes").stream, 2);
        assert_eq!(refused.expect("an error").code(), OVERLOADED);
        assert!(stalls.receive_or_end().await.is_none());
    });
}

#[test]
fn compressed_copies_of_large_rows_count_until_they_are_taken() {
    let limits = Limits { shard_unread: 64 << 20, ..limits() };
    run(limits, |world| async move {
        let counted = Rc::new(Cell::new(0));
        let counter = counted.clone();
        world.server.transport.count_copies_in(Box::new(move |bytes| -> Held {
            counter.set(counter.get() + bytes);
            Box::new(Counted { of: counter.clone(), bytes })
        }));
        let mut client = world.connect();
        client.start(&[("COMPRESSION", "lz4")]).await;
        client.send(&query(1, "noise 3000000")).await;
        while counted.get() == 0 {
            rt::task::yield_now().await;
        }
        assert!((3_000_000..3_100_000).contains(&counted.get()), "{}", counted.get());
        client.receive().await;
        while counted.get() > 0 {
            rt::task::yield_now().await;
        }
    });
}

struct Counted {
    of: Rc<Cell<usize>>,
    bytes: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.of.set(self.of.get() - self.bytes);
    }
}

#[test]
fn a_client_that_does_not_read_is_dropped_without_asking_more() {
    let limits = Limits { unread_time: Duration::from_millis(50), ..limits() };
    run(limits, |world| async move {
        let mut client = world.connect();
        client.start(&[]).await;
        client.send(&query(1, "rows 900000")).await;
        let transport = world.server.transport.clone();
        let gone = async {
            while transport.connection_count() > 0 {
                rt::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(20), gone).await.expect("dropped");
        assert_eq!((transport.unread(), transport.stats.dropped_unread.get()), (0, 1));
    });
}
