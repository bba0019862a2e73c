//! Large requests that do not arrive completely, and large answers that are not read.

use super::memory::Held;
use super::segment_tests::Speaker;
use super::tests::{Client, World, limits, query, query_body, raw, run};
use super::transport::Limits;
use crate::protocol::Opcode;
use crate::protocol::frames::BUFFER;
use crate::protocol::segment::{Form, MAX_PAYLOAD};
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
        let waits = async {
            while !memory.has_waiting() {
                rt::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(20), waits).await.expect("it waits for memory");
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

/// Input without reservations above which a shard with [`limits`] is under pressure.
const PRESSURE: usize = 1 << 18;

/// Lets other tasks run until they have nothing to do.
async fn settle() {
    for _ in 0..2000 {
        rt::task::yield_now().await;
    }
}

/// A refused statement that fits into a read buffer.
fn medium_query(stream: i16) -> Vec<u8> {
    query(stream, &format!("warn {}", "x".repeat(60_000)))
}

/// Connections that have grown their buffers, and are idle.
async fn idle_clients(world: &World, count: usize) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut client = world.connect();
        client.start(&[]).await;
        for stream in 0..3 {
            client.ask(&medium_query(stream)).await;
        }
        clients.push(client);
    }
    clients
}

#[test]
fn a_connection_keeps_its_buffer_while_others_hold_little() {
    run(limits(), |world| async move {
        let memory = world.server.transport.memory.clone();
        let mut clients = idle_clients(&world, 3).await;
        settle().await;
        let held = memory.input();
        assert!(held > 3 * (BUFFER - (16 << 10)) && held < PRESSURE, "{held}");
        let many: Vec<u8> = (0..500).flat_map(|stream| query(stream, "rows 5")).collect();
        for client in &mut clients {
            client.send(&many).await;
            for _ in 0..500 {
                client.receive().await;
            }
        }
        settle().await;
        assert!(memory.input() >= held, "{}", memory.input());
        drop(clients);
        settle().await;
        assert_eq!((memory.input(), memory.used()), (0, 0));
    });
}

#[test]
fn idle_connections_give_their_buffers_back_when_all_hold_much() {
    run(limits(), |world| async move {
        let memory = world.server.transport.memory.clone();
        let mut clients = idle_clients(&world, 40).await;
        settle().await;
        assert!(memory.input() <= PRESSURE, "{}", memory.input());
        for client in &mut clients {
            assert_eq!(client.ask(&medium_query(9)).await.stream, 9);
        }
        settle().await;
        assert!(memory.input() <= PRESSURE, "{}", memory.input());
        drop(clients);
        settle().await;
        assert_eq!((memory.input(), memory.used()), (0, 0));
    });
}

/// Each of them holds half a buffer otherwise.
#[test]
fn beginnings_of_large_requests_are_in_the_budget_and_have_a_deadline() {
    let limits = Limits { large_frame_step: Duration::from_millis(20), ..limits() };
    run(limits, |world| async move {
        let memory = world.server.transport.memory.clone();
        let mut begun = Vec::new();
        for _ in 0..60 {
            let mut client = world.connect();
            client.start(&[]).await;
            let (_, mut write) = tokio::io::split(client.stream);
            let sends = async move {
                // It is not read to its end under pressure, and may be cut.
                let _ = tokio::io::AsyncWriteExt::write_all(&mut write, &long_query(1, 900_000)[..32_000]).await;
                std::future::pending::<()>().await;
            };
            begun.push(rt::task::spawn(sends));
            for _ in 0..50 {
                rt::task::yield_now().await;
            }
            assert!(memory.input() <= PRESSURE + BUFFER, "{}", memory.input());
        }
        let mut client = world.connect();
        client.start(&[]).await;
        for text in [query(2, "rows 5"), medium_query(2), long_query(2, 900_000)] {
            let answer = timeout(Duration::from_secs(50), client.ask(&text)).await;
            assert_eq!(answer.expect("its turn comes").stream, 2);
        }
        assert!(memory.input() <= PRESSURE + BUFFER, "{}", memory.input());
        begun.iter().for_each(|sends| sends.abort());
        drop(client);
        drop(begun);
        while world.server.transport.connection_count() > 0 {
            rt::task::yield_now().await;
        }
        assert_eq!((memory.input(), memory.used(), memory.has_waiting()), (0, 0, false));
    });
}

#[test]
fn first_segments_of_large_requests_are_not_decompressed() {
    run(limits(), |world| async move {
        let memory = world.server.transport.memory.clone();
        let mut body = query_body(&format!("warn {}", "x".repeat(900_000)));
        body.extend([0, 0, 0]);
        let request = raw(5, 0, 1, Opcode::Query as u8, &body);
        let mut clients = Vec::new();
        for _ in 0..20 {
            let mut client = Speaker::start(&world, Some(Form::Lz4), &[]).await;
            client.send_part(&request[..100_000]).await;
            clients.push(client);
        }
        settle().await;
        assert_eq!((memory.input(), memory.used()), (0, 0));
        for mut client in clients {
            for part in request[100_000..].chunks(100_000) {
                client.send_part(part).await;
            }
            assert_eq!(client.receive_or_end().await.expect("an answer").stream, 1);
        }
        settle().await;
        assert_eq!((memory.input(), memory.used()), (0, 0));
    });
}

#[test]
fn open_segments_behind_unread_answers_are_in_the_budget() {
    let limits = Limits { connection_unread: 10_000, unread_time: Duration::from_millis(200), ..limits() };
    run(limits, |world| async move {
        let memory = world.server.transport.memory.clone();
        let query = |text: &str| raw(5, 0, 1, Opcode::Query as u8, &[&query_body(text)[..], &[0, 0, 0]].concat());
        let filler = query(&format!("warn {}", "x".repeat(10_000)));
        let payload = [vec![query("noise 40000")], vec![filler; 10]].concat().concat();
        let mut clients = Vec::new();
        for _ in 0..40 {
            let mut client = Speaker::start(&world, Some(Form::Lz4), &[]).await;
            client.send(&payload).await;
            clients.push(client);
            settle().await;
            assert!(memory.input() <= PRESSURE + MAX_PAYLOAD, "{}", memory.input());
        }
        // Clients that do not read are dropped. The others then get their turns.
        let mut another = Speaker::start(&world, Some(Form::Lz4), &[]).await;
        another.send(&payload).await;
        for _ in 0..11 {
            let answer = timeout(Duration::from_secs(50), another.receive_or_end()).await;
            assert_eq!(answer.expect("its turn comes").expect("an answer").stream, 1);
        }
        drop((another, clients));
        while world.server.transport.connection_count() > 0 {
            rt::task::yield_now().await;
        }
        settle().await;
        assert_eq!((memory.input(), memory.used(), memory.has_waiting()), (0, 0, false));
    });
}

/// Conversations that end anywhere, alone and under pressure.
#[test]
fn closed_connections_hold_no_input() {
    run(limits(), |world| async move {
        let memory = world.server.transport.memory.clone();
        for idle in [0, 10] {
            let others = idle_clients(&world, idle).await;
            let long = long_query(1, 200_000);
            for end in [1, 8, 9, 5000, 40_000, 70_000, 150_000, long.len()] {
                let mut client = world.connect();
                client.start(&[]).await;
                client.send(&[&query(0, "rows 5")[..], &medium_query(2)].concat()).await;
                client.receive().await;
                client.receive().await;
                client.send(&long[..end]).await;
                rt::task::yield_now().await;
                drop(client);
                let mut client = Speaker::start(&world, Some(Form::Lz4), &[]).await;
                client.send_part(&long[..end.min(100_000)]).await;
                client.send_part(&long[..end.min(100_000)]).await;
                rt::task::yield_now().await;
                drop(client);
            }
            drop(others);
            while world.server.transport.connection_count() > 0 {
                rt::task::yield_now().await;
            }
            settle().await;
            assert_eq!((memory.input(), memory.used(), memory.has_waiting()), (0, 0, false));
        }
    });
}
