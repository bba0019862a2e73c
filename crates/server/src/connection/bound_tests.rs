//! Limits on what clients make the server hold: pending requests, memory for them, unread answers.

use super::drive;
use super::startup::{KEPT_OPTIONS, MAX_OPTIONS};
use super::tests::{Client, World, limits, query, raw, run, string_map};
use super::transport::Limits;
use crate::protocol::{Opcode, SESSION_BODY};
use rt::time::{Duration, timeout};
use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn slow_statements_do_not_hold_up_others_and_end_with_their_client() {
    run(limits(), |world| async move {
        let mut client = world.connect();
        client.start(&[]).await;
        for stream in 0..3 {
            client.send(&query(stream, "wait")).await;
        }
        assert_eq!(client.ask(&query(10, "rows 5")).await.stream, 10);
        let transport = world.server.transport.clone();
        assert_eq!((transport.in_flight(), transport.connections()[0].in_flight()), (3, 3));
        assert!(transport.memory.used() > 3 * 8192);
        world.fake.release.add_permits(1);
        assert_eq!(client.receive().await.opcode, Opcode::Result as u8);
        drop(client);
        for _ in 0..2 {
            timeout(Duration::from_secs(60), world.fake.gone.notified()).await.expect("cancelled");
            if world.fake.cancelled.get() == 2 {
                break;
            }
        }
        world.server.stop().await;
        rt::task::yield_now().await;
        assert_eq!((transport.in_flight(), transport.memory.used(), transport.unread()), (0, 0, 0));
    });
}

#[test]
fn a_client_that_never_reads_is_not_read_either() {
    run(limits(), |world| async move {
        let mut client = world.connect();
        client.start(&[]).await;
        let transport = world.server.transport.clone();
        let sent = Rc::new(Cell::new(0u32));
        let count = sent.clone();
        let sender = rt::task::spawn(async move {
            for stream in 0..10_000 {
                client.send(&query(stream, "rows 9000")).await;
                count.set(count.get() + 1);
            }
        });
        let mut before = u32::MAX;
        while before != sent.get() {
            before = sent.get();
            for _ in 0..1000 {
                rt::task::yield_now().await;
            }
        }
        assert!(!sender.is_finished());
        assert!(transport.unread() < (64 << 10) + 9100, "{}", transport.unread());
        assert!(transport.stats.blocked_unread.get() > 0);
        sender.abort();
    });
}

#[test]
fn clients_that_stall_go_when_the_shard_is_short_of_memory() {
    let limits = Limits { connection_unread: 10, shard_unread: 20_000, ..limits() };
    run(limits, |world| async move {
        let transport = world.server.transport.clone();
        let mut client = world.connect();
        client.start(&[]).await;
        two_late_answers(&world, &mut client).await;
        let known = transport.connections().remove(0);
        world.fake.release.add_permits(1);
        while transport.connection_count() > 0 {
            rt::task::yield_now().await;
        }
        assert!(known.client.cancel.is_cancelled());
        assert_eq!(transport.stats.dropped_unread.get(), 1);
        assert_eq!(transport.unread(), 0);
    });
}

#[test]
fn clients_that_read_stay_when_the_shard_was_busy_for_long() {
    let limits = Limits { connection_unread: 10, shard_unread: 20_000, ..limits() };
    run(limits, |world| async move {
        let mut client = world.connect();
        client.start(&[]).await;
        two_late_answers(&world, &mut client).await;
        // The shard appends the second answer before it sees that the client has read some of the
        // first.
        world.fake.release.add_permits(1);
        for _ in 0..2 {
            assert_eq!(client.receive().await.body.len(), 16 + 30_000);
        }
        assert_eq!(world.server.transport.stats.dropped_unread.get(), 0);
    });
}

/// The client has requested two answers, and has not read the first for so long that it can be
/// dropped. The second waits for a permit.
async fn two_late_answers(world: &World, client: &mut Client) {
    for stream in 0..2 {
        client.send(&query(stream, "late 30000")).await;
    }
    let transport = &world.server.transport;
    while transport.in_flight() < 2 {
        rt::task::yield_now().await;
    }
    world.fake.release.add_permits(1);
    while transport.unread() == 0 {
        rt::task::yield_now().await;
    }
    for _ in 0..100 {
        rt::task::yield_now().await;
    }
    #[allow(clippy::disallowed_methods, reason = "the whole shard has to stall")]
    std::thread::sleep(Duration::from_millis(1100));
}

#[test]
fn answers_that_the_shard_cannot_hold_are_refused_and_their_clients_stay() {
    let limits = Limits { connection_unread: 1000, shard_unread: 20_000, ..limits() };
    run(limits, |world| async move {
        let (mut one, mut two) = (world.connect(), world.connect());
        one.start(&[]).await;
        two.start(&[]).await;
        // Four times the memory for unread answers is the limit, whatever other clients hold.
        let refused = one.ask(&query(1, "rows 90000")).await;
        assert_eq!((refused.code(), refused.stream), (0x2200, 1));
        assert!(refused.message().contains("90000 bytes"), "{}", refused.message());
        one.send(&query(2, "rows 70000")).await;
        while world.server.transport.unread() == 0 {
            rt::task::yield_now().await;
        }
        let refused = two.ask(&query(1, "rows 30000")).await;
        assert_eq!((refused.code(), refused.stream), (0x1001, 1));
        assert_eq!(two.ask(&query(2, "rows 500")).await.body.len(), 16 + 500);
        assert_eq!(one.receive().await.body.len(), 16 + 70_000);
        assert_eq!(two.ask(&query(3, "rows 30000")).await.body.len(), 16 + 30_000);
        assert_eq!(world.server.transport.stats.dropped_unread.get(), 0);
    });
}

/// A replica that does not respond must not stop a connection whose answers are small.
#[test]
fn writes_are_not_counted_as_large_answers() {
    const REQUESTS: i16 = 90;
    run(limits(), |world| async move {
        let transport = world.server.transport.clone();
        let mut client = world.connect();
        client.start(&[]).await;
        for stream in 0..REQUESTS {
            client.send(&query(stream, "UPDATE 10")).await;
        }
        for _ in 0..1000 {
            rt::task::yield_now().await;
        }
        assert_eq!(transport.in_flight(), REQUESTS as usize, "all of them are begun");
        assert_eq!(client.ask(&query(REQUESTS, "rows 10")).await.stream, REQUESTS, "the connection is read");
        world.fake.release.add_permits(REQUESTS as usize);
    });
}

#[test]
fn expected_answers_count_against_the_unread_limit() {
    const CLIENTS: usize = 20;
    const REQUESTS: i16 = 90;
    const ANSWER: usize = 20_000;
    run(limits(), |world| async move {
        let transport = world.server.transport.clone();
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let mut client = world.connect();
            client.start(&[]).await;
            for stream in 0..REQUESTS {
                client.send(&query(stream, &format!("late {ANSWER}"))).await;
            }
            clients.push(client);
        }
        let mut most = 0;
        for _ in 0..2 * CLIENTS * REQUESTS as usize {
            world.fake.release.add_permits(1);
            for _ in 0..4 {
                rt::task::yield_now().await;
                most = most.max(transport.unread());
            }
        }
        // Each client always gets one answer. Beyond that, the shard's limit holds, except for
        // answers that were expected to be smaller than they are.
        assert!(most <= CLIENTS * (ANSWER + 100) + (5 << 18), "{most}");
        assert_eq!(transport.stats.dropped_unread.get(), 0);
        let mut another = world.connect();
        another.start(&[]).await;
        assert_eq!(another.ask(&query(1, "rows 10")).await.stream, 1);
        // Clients that read in the end miss nothing.
        let reading: Vec<_> = clients
            .into_iter()
            .map(|mut client| {
                rt::task::spawn(async move {
                    for _ in 0..REQUESTS {
                        assert_eq!(client.receive().await.body.len(), 16 + ANSWER);
                    }
                })
            })
            .collect();
        for client in reading {
            client.await.expect("it got everything");
        }
        assert_eq!(transport.unread() + transport.expected.get(), 0);
    });
}

#[test]
fn too_many_waiting_statements_are_refused_and_too_many_of_one_client_are_not_read() {
    let limits = Limits { shard_in_flight: 5, connection_in_flight: 4, ..limits() };
    run(limits, |world| async move {
        let (mut one, mut two) = (world.connect(), world.connect());
        one.start(&[]).await;
        two.start(&[]).await;
        for stream in 0..6 {
            one.send(&query(stream, "wait")).await;
        }
        let transport = world.server.transport.clone();
        while transport.in_flight() < 4 {
            rt::task::yield_now().await;
        }
        two.send(&query(0, "wait")).await;
        let refused = two.ask(&query(1, "rows 1")).await;
        assert_eq!((refused.code(), refused.stream), (0x1001, 1));
        assert!(refused.message().contains("max_concurrent_requests_per_shard"));
        world.fake.release.add_permits(7);
        for _ in 0..6 {
            assert_eq!(one.receive().await.opcode, Opcode::Result as u8);
        }
    });
}

/// Statements that wait until they are released.
fn that_wait(count: i16) -> Vec<u8> {
    (0..count).flat_map(|stream| query(stream, "wait")).collect()
}

/// The statements of one connection do not end. Those of the other do, so that there is room.
#[test]
fn a_connection_that_was_held_back_is_read_again_when_statements_of_others_end() {
    let limits = Limits { overloaded_in_flight: 8, ..limits() };
    run(limits, |world| async move {
        let (mut one, mut two) = (world.connect(), world.connect());
        one.start(&[]).await;
        two.start(&[]).await;
        let transport = world.server.transport.clone();
        transport.observe_overload(Box::new(|| true));
        two.send(&that_wait(4)).await;
        while transport.in_flight() < 4 {
            rt::task::yield_now().await;
        }
        one.send(&that_wait(9)).await;
        while transport.stats.blocked_overload.get() < 1 {
            rt::task::yield_now().await;
        }
        assert_eq!(transport.in_flight(), 8);
        // The statements of `two` came first.
        world.fake.release.add_permits(2);
        // Far fewer than fit between two looks at its socket.
        for _ in 0..1000 {
            rt::task::yield_now().await;
        }
        assert_eq!(transport.connections()[0].in_flight(), 6);
        world.fake.release.add_permits(40);
    });
}

/// The other connection has none of the pending statements, and may start its share of them.
#[test]
fn an_overloaded_shard_does_not_read_a_connection_that_has_its_share_of_the_pending_statements() {
    let limits = Limits { overloaded_in_flight: 6, ..limits() };
    run(limits, |world| async move {
        let (mut one, mut two) = (world.connect(), world.connect());
        one.start(&[]).await;
        two.start(&[]).await;
        let transport = world.server.transport.clone();
        let is_overloaded = Rc::new(Cell::new(true));
        transport.observe_overload(Box::new({
            let is_overloaded = is_overloaded.clone();
            move || is_overloaded.get()
        }));
        let until_in_flight = |count: usize| {
            let transport = transport.clone();
            async move {
                while transport.in_flight() < count {
                    rt::task::yield_now().await;
                }
                for _ in 0..1000 {
                    rt::task::yield_now().await;
                }
                assert_eq!(transport.in_flight(), count);
            }
        };
        one.send(&that_wait(12)).await;
        until_in_flight(6).await;
        two.send(&that_wait(12)).await;
        until_in_flight(9).await;
        assert!(transport.stats.blocked_overload.get() > 0);
        world.fake.release.add_permits(4);
        for _ in 0..4 {
            assert_eq!(one.receive().await.opcode, Opcode::Result as u8);
        }
        until_in_flight(6).await;
        // No statement of either connection ends.
        is_overloaded.set(false);
        until_in_flight(8 + 12).await;
        world.fake.release.add_permits(40);
        for _ in 0..8 {
            assert_eq!(one.receive().await.opcode, Opcode::Result as u8);
        }
        for _ in 0..12 {
            assert_eq!(two.receive().await.opcode, Opcode::Result as u8);
        }
    });
}

#[test]
fn requests_wait_for_memory() {
    let limits = Limits { request_memory: 20_000, ..limits() };
    run(limits, |world| async move {
        let mut client = world.connect();
        client.start(&[]).await;
        for stream in 0..10 {
            client.send(&query(stream, "wait")).await;
        }
        let transport = world.server.transport.clone();
        for _ in 0..1000 {
            rt::task::yield_now().await;
        }
        assert_eq!(transport.in_flight(), 3, "three statements of 8 KiB fill 20,000 bytes");
        assert!(transport.memory.waits() > 0);
        world.fake.release.add_permits(10);
        for _ in 0..10 {
            assert_eq!(client.receive().await.opcode, Opcode::Result as u8);
        }
        assert_eq!(world.fake.texts.borrow().len(), 10);
    });
}

/// Lets other tasks run until the clock has moved on.
async fn clock_moves() {
    let before = rt::time::now();
    while rt::time::now() <= before + Duration::from_millis(2) {
        rt::task::yield_now().await;
    }
}

#[test]
fn the_time_of_a_request_begins_when_it_is_received_and_not_when_it_is_its_turn() {
    let limits = Limits { connection_in_flight: 1, ..limits() };
    run(limits, |world| async move {
        let mut client = world.connect();
        client.start(&[]).await;
        let requests: Vec<u8> = (0..3).flat_map(|stream| query(stream, "wait")).collect();
        client.send(&requests).await;
        while world.server.transport.in_flight() < 1 {
            rt::task::yield_now().await;
        }
        let all_received = rt::time::now();
        for _ in 0..3 {
            clock_moves().await;
            world.fake.release.add_permits(1);
            client.receive().await;
        }
        let received = world.fake.received.take();
        assert_eq!(received.len(), 3);
        assert!(received.iter().all(|at| at.is_some_and(|at| at <= all_received)), "{received:?}");
    });
}

#[test]
fn the_time_of_a_large_request_that_waits_for_memory_runs() {
    run(limits(), |world| async move {
        let (mut first, mut second) = (world.connect(), world.connect());
        first.start(&[]).await;
        second.start(&[]).await;
        let long = query(1, &format!("wait {}", "x".repeat(900_000)));
        first.send(&long).await;
        let transport = world.server.transport.clone();
        while transport.in_flight() < 1 {
            rt::task::yield_now().await;
        }
        let sends = rt::task::spawn(async move {
            second.send(&long).await;
            second
        });
        while !transport.memory.has_waiting() {
            rt::task::yield_now().await;
        }
        let waits = rt::time::now();
        clock_moves().await;
        let released = rt::time::now();
        world.fake.release.add_permits(2);
        first.receive().await;
        sends.await.expect("sent").receive().await;
        let arrived = rt::time::now();
        let received = world.fake.received.borrow()[1].expect("its time is known");
        assert!(received <= arrived - (released - waits), "the wait of {:?} does not count", released - waits);
    });
}

/// The code of a protocol error.
const PROTOCOL: i32 = 0x000A;

#[test]
fn requests_about_the_connection_are_short() {
    run(limits(), |world| async move {
        let mut client = world.connect();
        let long = vec![0; SESSION_BODY + 1];
        for opcode in [Opcode::Startup, Opcode::Options, Opcode::Query] {
            let refused = client.ask(&raw(4, 0, 3, opcode as u8, &long)).await;
            assert_eq!((refused.code(), refused.stream), (PROTOCOL, 3));
            let message = refused.message();
            assert!(message.contains("before STARTUP: 65536 bytes"), "{message}");
        }
        assert_eq!(world.server.transport.memory.waits(), 0);
        client.start(&[]).await;
        for opcode in [Opcode::Register, Opcode::AuthResponse, Opcode::Options, Opcode::Startup] {
            let refused = client.ask(&raw(4, 0, 3, opcode as u8, &long)).await;
            assert_eq!(refused.code(), PROTOCOL);
            let message = refused.message();
            assert!(message.contains("about the connection: 65536 bytes"), "{message}");
        }
        let text = format!("rows 5{}", " ".repeat(SESSION_BODY));
        assert_eq!(
            client.ask(&query(1, &text.replace("rows 5", "what"))).await.code(),
            0x2000,
            "statements may be long"
        );
    });
}

#[test]
fn few_options_of_startup_are_kept() {
    run(limits(), |world| async move {
        let mut client = world.connect();
        let names: Vec<String> = (0..MAX_OPTIONS).map(|at| format!("N{at}")).collect();
        let mut many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
        many.push(("CQL_VERSION", "3.0.0"));
        let refused = client.ask(&raw(4, 0, 0, Opcode::Startup as u8, &string_map(&many))).await;
        assert_eq!(refused.code(), PROTOCOL);
        assert!(refused.message().contains("STARTUP has 65 options; the maximum is 64"), "{}", refused.message());
        let long = "v".repeat(KEPT_OPTIONS);
        client.start(&[("LONG", &long), ("DRIVER_NAME", "test"), ("COMPRESSION", "lz4")]).await;
        let known = &world.server.transport.connections()[0];
        assert_eq!(known.option("LONG"), None, "there is no room for it");
        assert_eq!(known.option("DRIVER_NAME").as_deref(), Some("test"));
        let kept: usize = known.info().options.iter().map(|(name, value)| name.len() + value.len()).sum();
        assert!(kept <= KEPT_OPTIONS, "{kept}");
    });
}

#[test]
fn statements_of_a_closed_connection_end_although_it_is_not_read() {
    let limits = Limits { connection_in_flight: 2, ..limits() };
    run(limits, |world| async move {
        for reset in [false, true] {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let listener = rt::net::listen(address, Default::default()).await.expect("listens");
            let mut stream = rt::net::connect(listener.local_addr().expect("an address")).await.expect("connects");
            let (there, peer) = listener.accept().await.expect("accepts");
            rt::task::spawn(drive::serve(world.server.clone(), there, peer, None, None)).detach();
            let all = string_map(&[("CQL_VERSION", "3.0.0")]);
            stream.write_all(&raw(4, 0, 0, Opcode::Startup as u8, &all)).await.expect("sent");
            let mut ready = [0; 9];
            stream.read_exact(&mut ready).await.expect("an answer");
            // The last one stays in the buffer of the connection, which is not read any more.
            for stream_id in 0..3 {
                stream.write_all(&query(stream_id, "wait")).await.expect("sent");
            }
            let transport = world.server.transport.clone();
            while transport.in_flight() < 2 {
                rt::time::sleep(Duration::from_millis(1)).await;
            }
            if reset {
                stream.set_zero_linger().expect("set");
            }
            let closed = rt::time::now();
            drop(stream);
            while transport.in_flight() > 0 || transport.connection_count() > 0 {
                assert!(closed.elapsed() < Duration::from_secs(10), "the statements still wait");
                rt::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(closed.elapsed() < Duration::from_secs(1), "{:?}", closed.elapsed());
        }
        assert_eq!(world.fake.texts.borrow().len(), 4);
    });
}
