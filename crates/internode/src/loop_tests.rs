//! Both ends of a connection against each other, or against a misbehaving end, in memory.

use super::channel::{Asking, Channel};
use super::config::{InternodeConfig, Verb};
use super::connection::{Connection, End, drive};
use super::error::{CallError, Refusal, RefusalCode};
use super::frame::{Frame, Frames, Head, Kind, VERSION};
use super::handlers::{Caller, Handlers};
use super::handshake::Party;
use super::metrics::Counters;
use super::serving::Serving;
use bytes::Bytes;
use model::HostId;
use rt::Pieces;
use rt::net::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use rt::sync::{Deadline, Notify, oneshot};
use rt::task::{Task, spawn, yield_now};
use rt::time::{Duration, sleep, timeout};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use uuid::Uuid;

const SOON: Duration = Duration::from_secs(60);

fn small() -> InternodeConfig {
    InternodeConfig {
        largest_body: 1 << 20,
        in_flight: 50,
        queued_bytes: 256 << 10,
        waiting: 30,
        // The machine may stall for a while.
        silence: SOON,
        ..InternodeConfig::default()
    }
}

fn host(n: u128) -> HostId {
    HostId(Uuid::from_u128(n))
}

fn party() -> Party {
    Party {
        host: host(2),
        shard: 0,
        shards: 1,
        address: ([127, 0, 0, 2], 7000).into(),
        datacenter: "d".into(),
        rack: "r".into(),
        features: Vec::new(),
    }
}

/// The requesting end on `stream`.
fn ask(mut stream: DuplexStream, config: InternodeConfig, compress: bool) -> (Rc<Channel>, Task<End>) {
    let channel = Channel::new(Connection::new(VERSION, compress, Rc::default()), config, party());
    let asking = channel.clone();
    let task = spawn(async move {
        let mut role = Asking::new(asking.clone());
        let end = drive(&mut stream, Frames::new(VERSION, config.largest_body), &asking.connection, &mut role).await;
        asking.close(&end.why());
        end
    });
    (channel, task)
}

/// The answering end on `stream`.
fn answer(mut stream: DuplexStream, config: InternodeConfig, handlers: Rc<Handlers>) -> (Rc<Counters>, Task<End>) {
    let counters: Rc<Counters> = Rc::default();
    let connection = Connection::new(VERSION, true, counters.clone());
    let task = spawn(async move {
        let mut role =
            Serving::new(connection.clone(), &Party { host: host(1), shard: 3, ..party() }, handlers, config);
        drive(&mut stream, Frames::new(VERSION, config.largest_body), &connection, &mut role).await
    });
    (counters, task)
}

fn deadline() -> Deadline {
    Deadline::after(SOON)
}

/// The next frame that arrives at a raw end.
async fn next_frame(stream: &mut DuplexStream, frames: &mut Frames) -> Frame {
    loop {
        if let Some(frame) = frames.next_frame().expect("right") {
            return frame;
        }
        assert!(stream.read_buf(frames.space()).await.expect("read") > 0);
    }
}

/// Sends a frame without a body from a raw end.
async fn send(stream: &mut DuplexStream, kind: Kind, number: u64) {
    let head = Head { kind, verb: Verb::Replica as u8, stream: number, time_left: 60_000_000 };
    let mut out = bytes::BytesMut::new();
    super::frame::put_whole(&mut out, head, &[], false);
    stream.write_all(&out).await.expect("written");
}

async fn echo(caller: Caller, body: Bytes) -> Result<Pieces, Refusal> {
    assert_eq!((caller.host, caller.shard), (host(1), 3));
    // Some at once, some later, and out of order.
    if let Some(delay) = body.first().filter(|first| **first % 3 != 0) {
        sleep(Duration::from_millis(u64::from(*delay) % 5)).await;
    }
    Ok(body.into())
}

fn echoing() -> Rc<Handlers> {
    let handlers = Handlers::new();
    handlers.set(Verb::Replica, echo);
    handlers
}

#[test]
fn every_call_gets_its_own_answer() {
    rt::block_on(async {
        for (capacity, compress) in [(64, false), (1 << 20, true), (4000, true)] {
            let (near, far) = duplex(capacity);
            let (channel, asking) = ask(near, small(), compress);
            let (counters, answering) = answer(far, small(), echoing());
            let calls: Vec<_> = (0..60u32)
                .map(|n| {
                    let channel = channel.clone();
                    spawn(async move {
                        let body = Bytes::from(vec![n as u8; (n as usize * 997) % 20_000]);
                        let got = channel.call(Verb::Replica, body.clone(), deadline()).await;
                        assert_eq!(got, Ok(body), "call {n}");
                    })
                })
                .collect();
            for call in calls {
                call.await.expect("answered");
            }
            assert_eq!((counters.served.get(), counters.serving.get()), (60, 0));
            let asked = channel.connection.counters.read();
            assert_eq!((asked.requests_sent, asked.replied, asked.wait_reply, asked.pending), (60, 60, 0, 0));
            channel.close(&"done".into());
            assert_eq!(asking.await, Ok(End::Ended("done".into())));
            assert_eq!(answering.await, Ok(End::Closed));
            let after = channel.call(Verb::Replica, Bytes::new(), deadline()).await;
            assert_eq!(after, Err(CallError::Unreachable("done".into())));
        }
    });
}

#[test]
fn refusals_keep_their_code_and_text() {
    rt::block_on(async {
        let (near, far) = duplex(1 << 16);
        let handlers = echoing();
        handlers.set(Verb::Raft, |_, _| async { Err(Refusal::failed("not the leader")) });
        let (channel, _asking) = ask(near, small(), false);
        let (_, _answering) = answer(far, small(), handlers.clone());
        let refused = |answer: Result<Bytes, CallError>| match answer {
            Err(CallError::Refused(refusal)) => (refusal.code, refusal.text.to_string()),
            other => panic!("{other:?}"),
        };
        let answer = channel.call(Verb::Raft, Bytes::new(), deadline()).await;
        assert_eq!(refused(answer), (RefusalCode::Failed, "not the leader".to_owned()));
        let answer = channel.call(Verb::Stream, Bytes::new(), deadline()).await;
        assert_eq!(refused(answer).0, RefusalCode::UnknownVerb);
        handlers.stopping.set(true);
        let answer = channel.call(Verb::Replica, Bytes::new(), deadline()).await;
        assert_eq!(refused(answer).0, RefusalCode::Stopping);
    });
}

/// A handler that never answers, and reports when it is dropped.
/// The other end closes the connection if a body is longer, and all its calls fail.
#[test]
fn a_response_that_is_too_long_is_refused_and_the_connection_stays() {
    rt::block_on(async {
        let (near, far) = duplex(1 << 20);
        let (channel, _asking) = ask(near, small(), true);
        let handlers = Handlers::new();
        handlers.set(Verb::Replica, |_: Caller, body: Bytes| async move {
            Ok::<Pieces, Refusal>(Bytes::from(vec![7; small().largest_body + body.len()]).into())
        });
        let (_counters, _answering) = answer(far, small(), handlers);
        let call = |body: &'static [u8]| channel.call(Verb::Replica, Bytes::from_static(body), deadline());
        let refused = call(b"1").await.expect_err("too long");
        assert!(matches!(&refused, CallError::Refused(why) if why.code == RefusalCode::Failed), "{refused}");
        assert_eq!(call(b"").await.expect("the longest").len(), small().largest_body);
    });
}

fn endless(handlers: &Handlers, started: &Rc<Cell<u32>>, dropped: &Rc<Cell<u32>>) {
    struct Dropped(Rc<Cell<u32>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let (started, dropped) = (started.clone(), dropped.clone());
    handlers.set(Verb::Replica, move |_, _| {
        started.set(started.get() + 1);
        let guard = Dropped(dropped.clone());
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    });
}

async fn until(what: impl Fn() -> bool) {
    timeout(SOON, async {
        while !what() {
            yield_now().await;
        }
    })
    .await
    .expect("in time");
}

#[test]
fn a_disconnected_caller_cancels_its_requests() {
    rt::block_on(async {
        let (near, far) = duplex(1 << 16);
        let (handlers, started, dropped) = (Handlers::new(), Rc::default(), Rc::default());
        endless(&handlers, &started, &dropped);
        let (channel, _asking) = ask(near, small(), false);
        let (counters, answering) = answer(far, small(), handlers);
        let call = |time| {
            let channel = channel.clone();
            spawn(async move { channel.call(Verb::Replica, Bytes::new(), Deadline::after(time)).await })
        };
        let dropped_call = call(SOON);
        until(|| started.get() == 1).await;
        dropped_call.abort();
        until(|| dropped.get() == 1).await;
        assert_eq!(channel.connection.counters.cancelled.get(), 1);
        // The deadline ends the handler on both sides.
        assert_eq!(call(Duration::from_secs(1)).await, Ok(Err(CallError::Timeout)));
        until(|| dropped.get() == 2).await;
        assert_eq!(counters.serving.get(), 0);
        // The end of the connection does too.
        let last = call(SOON);
        until(|| started.get() == 3).await;
        channel.close(&"enough".into());
        assert_eq!(last.await, Ok(Err(CallError::Lost("enough".into()))));
        // A pipe breaks if the other end was sending, such as a ping.
        let ended = answering.await;
        assert!(matches!(ended, Ok(End::Closed | End::Failed(_))), "{ended:?}");
        // The handler ends by itself, possibly a moment later.
        until(|| dropped.get() == 3).await;
        assert_eq!(counters.serving.get(), 0);
    });
}

#[test]
fn a_peer_that_does_not_read_makes_callers_wait_and_then_refuses_them() {
    rt::block_on(async {
        let (near, far) = duplex(1000);
        let (channel, _asking) = ask(near, small(), false);
        let results = Rc::new(RefCell::new(Vec::new()));
        let calls: Vec<_> = (0..200)
            .map(|_| {
                let (channel, results) = (channel.clone(), results.clone());
                spawn(async move {
                    let body = Bytes::from(vec![1; 60_000]);
                    let result = channel.call(Verb::Replica, body, Deadline::after(Duration::from_secs(2))).await;
                    results.borrow_mut().push(result);
                })
            })
            .collect();
        until(|| channel.connection.counters.overloaded.get() > 0).await;
        let counters = channel.connection.counters.read();
        // 256 KiB of room are enough for four of these requests; thirty may wait.
        assert!(channel.connection.unwritten() <= 256 << 10, "{} bytes are queued", channel.connection.unwritten());
        assert_eq!((counters.wait_reply, counters.pending), (4, 30));
        for call in calls {
            call.await.expect("ended");
        }
        let overloaded = results.borrow().iter().filter(|result| **result == Err(CallError::Overloaded)).count();
        let late = results.borrow().iter().filter(|result| **result == Err(CallError::Timeout)).count();
        assert_eq!((overloaded, late), (166, 34));
        // Room is free again once the other end reads.
        let (_, _answering) = answer(far, small(), echoing());
        let answer = channel.call(Verb::Replica, Bytes::from_static(b"again"), deadline()).await;
        assert_eq!(answer, Ok(Bytes::from_static(b"again")));
        // A request that is larger than all room uses all of it.
        let large = Bytes::from(vec![3; 600_000]);
        assert_eq!(channel.call(Verb::Replica, large.clone(), deadline()).await, Ok(large.clone()));
        assert_eq!(channel.call(Verb::Replica, large.clone(), deadline()).await, Ok(large));
    });
}

fn request(stream: u64, body: &[u8]) -> Vec<u8> {
    request_within(20_000_000, stream, body)
}

/// A request with so many microseconds left.
fn request_within(time_left: u64, stream: u64, body: &[u8]) -> Vec<u8> {
    let mut out = bytes::BytesMut::new();
    let head = Head { kind: Kind::Request, verb: Verb::Replica as u8, stream, time_left };
    super::frame::put_whole(&mut out, head, body, false);
    out.to_vec()
}

#[test]
fn a_peer_that_reads_no_answers_has_no_more_requests_executed() {
    rt::block_on(async {
        let (near, far) = duplex(1 << 16);
        let handlers = Handlers::new();
        let go = Rc::new((Notify::new(), Cell::new(false)));
        let waits = go.clone();
        handlers.set(Verb::Replica, move |_, body| {
            let waits = waits.clone();
            async move {
                while body.first() == Some(&1) && !waits.1.get() {
                    waits.0.notified().await;
                }
                Ok(Bytes::from(crc_noise(50_000)).into())
            }
        });
        let (counters, _answering) = answer(far, small(), handlers);
        let (mut reads, mut writes) = split(near);
        let sending = spawn(async move {
            for stream in 0..300 {
                writes.write_all(&request(stream, &[u8::from(stream % 2 == 0)])).await.expect("written");
            }
            writes
        });
        until(|| counters.blocked.get() > 0).await;
        for _ in 0..1000 {
            yield_now().await;
        }
        // 256 KiB are enough for a few responses of 50 kB; the average has to be learned first.
        let served = counters.served.get();
        assert!(served < 60, "{served} requests were taken up");
        go.1.set(true);
        go.0.notify_waiters();
        let reading = spawn(async move {
            let mut frames = Frames::new(VERSION, 1 << 20);
            let mut got = 0;
            while got < 300 {
                assert!(reads.read_buf(frames.space()).await.expect("read") > 0);
                while let Some(frame) = frames.next_frame().expect("right") {
                    got += u32::from(frame.head.kind == Kind::Response);
                }
            }
            reads
        });
        timeout(SOON, reading).await.expect("in time").expect("ran");
        sending.await.expect("ran");
        assert_eq!((counters.served.get(), counters.serving.get()), (300, 0));
    });
}

#[test]
fn a_request_that_times_out_in_the_queue_is_not_executed() {
    rt::block_on(async {
        let (mut near, far) = duplex(1 << 16);
        let (handlers, started) = (Handlers::new(), Rc::new(Cell::new(0)));
        let go = Rc::new(Notify::new());
        let (starts, waits) = (started.clone(), go.clone());
        handlers.set(Verb::Replica, move |_, body| {
            starts.set(starts.get() + 1);
            let waits = waits.clone();
            async move {
                waits.notified().await;
                Ok(body.into())
            }
        });
        let config = InternodeConfig { in_flight: 1, ..small() };
        let (counters, _answering) = answer(far, config, handlers);
        near.write_all(&[request(1, b"waits"), request_within(1_000, 2, b"late")].concat()).await.expect("written");
        until(|| started.get() == 1).await;
        let received = rt::time::now();
        while rt::time::now() <= received + Duration::from_millis(2) {
            yield_now().await;
        }
        go.notify_one();
        let mut frames = Frames::new(VERSION, 1 << 20);
        let mut answers = Vec::new();
        while answers.len() < 2 {
            assert!(near.read_buf(frames.space()).await.expect("read") > 0);
            while let Some(frame) = frames.next_frame().expect("right") {
                answers.push((frame.head.stream, frame.head.kind));
            }
        }
        assert_eq!(answers, [(1, Kind::Response), (2, Kind::Error)]);
        assert_eq!((started.get(), counters.served.get()), (1, 2));
    });
}

fn crc_noise(len: usize) -> Vec<u8> {
    (0..len as u32 / 4).flat_map(|n| crc32fast::hash(&n.to_le_bytes()).to_le_bytes()).collect()
}

#[test]
fn bytes_that_are_not_a_frame_end_only_the_connection() {
    rt::block_on(async {
        for garbage in [&b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n"[..], &[0; 64], &request(7, b"x")] {
            let (near, mut far) = duplex(1 << 16);
            let (channel, asking) = ask(near, small(), false);
            let calling = channel.clone();
            let call = spawn(async move { calling.call(Verb::Replica, Bytes::new(), deadline()).await });
            far.write_all(garbage).await.expect("written");
            assert!(matches!(asking.await, Ok(End::Bad(_))));
            assert!(matches!(call.await, Ok(Err(CallError::Lost(_) | CallError::Unreachable(_)))));
        }
        let (mut near, far) = duplex(1 << 16);
        let (_, answering) = answer(far, small(), echoing());
        let mut damaged = request(7, b"hello");
        damaged[35] ^= 4;
        near.write_all(&damaged).await.expect("written");
        assert!(matches!(answering.await, Ok(End::Bad(_))));
    });
}

#[test]
fn an_answer_without_a_waiting_call_is_dropped() {
    rt::block_on(async {
        let (near, mut far) = duplex(1 << 16);
        let (channel, _asking) = ask(near, small(), false);
        let (sender, receiver) = oneshot::channel();
        let calling = channel.clone();
        spawn(async move {
            let answer = calling.call(Verb::Replica, Bytes::from_static(b"?"), deadline()).await;
            sender.send(answer).expect("the test waits");
        })
        .detach();
        let mut frames = Frames::new(VERSION, 1 << 20);
        let asked = next_frame(&mut far, &mut frames).await.head.stream;
        let mut out = bytes::BytesMut::new();
        for (stream, text) in [(asked + 1, "another"), (0, "zero"), (asked, "right"), (asked, "twice")] {
            let head = Head { kind: Kind::Response, verb: 0, stream, time_left: 0 };
            super::frame::put_whole(&mut out, head, text.as_bytes(), false);
        }
        far.write_all(&out).await.expect("written");
        assert_eq!(receiver.await, Ok(Ok(Bytes::from_static(b"right"))));
        assert!(channel.is_open());
    });
}

#[test]
fn a_silent_peer_is_given_up() {
    rt::block_on(async {
        let (near, far) = duplex(1 << 16);
        let config = InternodeConfig { silence: Duration::from_millis(300), ..small() };
        let (channel, asking) = ask(near, config, false);
        let answer = channel.call(Verb::Replica, Bytes::new(), deadline()).await;
        assert!(matches!(&answer, Err(CallError::Lost(why)) if why.contains("sent nothing")), "{answer:?}");
        assert!(matches!(asking.await, Ok(End::Ended(_))));
        drop(far);
    });
}

/// What the peer did not get before, such as a cancel frame, keeps it from getting later requests.
#[test]
fn a_peer_that_does_not_answer_a_cancel_is_given_up() {
    rt::block_on(async {
        let (near, mut far) = duplex(1 << 16);
        let config = InternodeConfig { silence: Duration::from_millis(300), ..small() };
        let (channel, asking) = ask(near, config, false);
        let calling = channel.clone();
        let call = spawn(async move { calling.call(Verb::Replica, Bytes::new(), deadline()).await });
        let mut frames = Frames::new(VERSION, 1 << 20);
        next_frame(&mut far, &mut frames).await;
        let asked = channel.connection.last_received();
        // Not in the clock tick of the request.
        sleep(Duration::from_millis(20)).await;
        send(&mut far, Kind::Alive, 0).await;
        while channel.connection.last_received() == asked {
            yield_now().await;
        }
        call.abort();
        let end = timeout(SOON, asking).await.expect("the silence is noticed");
        assert!(matches!(end, Ok(End::Ended(_))), "{end:?}");
    });
}

#[test]
fn a_cancel_after_a_response_is_answered() {
    rt::block_on(async {
        let (mut near, far) = duplex(1 << 16);
        let (_, _answering) = answer(far, small(), echoing());
        let mut frames = Frames::new(VERSION, 1 << 20);
        send(&mut near, Kind::Request, 1).await;
        assert_eq!(next_frame(&mut near, &mut frames).await.head.kind, Kind::Response);
        // Not in the clock tick of the response.
        sleep(Duration::from_millis(20)).await;
        send(&mut near, Kind::Cancel, 1).await;
        let frame = timeout(SOON, next_frame(&mut near, &mut frames)).await.expect("answered");
        assert_eq!(frame.head.kind, Kind::Alive);
    });
}
