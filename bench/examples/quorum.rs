//! Measures how a cluster serves clients of some of its nodes over time, at a rate that does not
//! depend on answers (open loop).
//!
//!     quorum COORDINATORS RATE SECONDS        (`make bench-cluster` runs it)
//!
//! COORDINATORS are addresses, separated by commas. Only these nodes are connected to, as by
//! clients that know no other node. Prepared point reads and writes at QUORUM alternate, RATE of
//! both together per second. Each request is sent at its scheduled time, whatever happened to
//! earlier ones. It counts as good if it is answered without an error within 500 ms of that time.
//! Prints one line of JSON: the wall clock at the start in milliseconds, and for each tenth of a
//! second how many requests were good, late or failed. `unsent` requests found no free stream on
//! their connection.

use bench::wire::{Client, frame, opcode, receive};
use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Connections to each coordinator.
const CONNECTIONS: usize = 4;
/// The maximum number of pending requests of a connection.
const STREAMS: u16 = 16_384;
const ROWS: u64 = 100_000;
const BUCKET: Duration = Duration::from_millis(100);
const LATE: Duration = Duration::from_millis(500);
/// How long to wait for answers after the last request.
const LINGER: Duration = Duration::from_secs(2);
const QUORUM: u16 = 4;

/// The results of requests, by tenth of a second.
struct Tally {
    good: Vec<AtomicU64>,
    late: Vec<AtomicU64>,
    failed: Vec<AtomicU64>,
    unsent: AtomicU64,
}

impl Tally {
    fn new(span: Duration) -> Tally {
        let buckets = (span.as_millis() / BUCKET.as_millis()) as usize + 1;
        let zeros = || (0..buckets).map(|_| AtomicU64::new(0)).collect();
        Tally { good: zeros(), late: zeros(), failed: zeros(), unsent: AtomicU64::new(0) }
    }

    fn count(list: &[AtomicU64], at: Duration) {
        let bucket = (at.as_millis() / BUCKET.as_millis()) as usize;
        if let Some(bucket) = list.get(bucket) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn show(list: &[AtomicU64]) -> String {
    let numbers: Vec<String> = list.iter().map(|number| number.load(Ordering::Relaxed).to_string()).collect();
    format!("[{}]", numbers.join(", "))
}

fn execute(id: &[u8], values: &[&[u8]]) -> Vec<u8> {
    let mut body = id.to_vec();
    body.extend(QUORUM.to_be_bytes());
    body.push(1);
    body.extend((values.len() as u16).to_be_bytes());
    for value in values {
        body.extend((value.len() as u32).to_be_bytes());
        body.extend(*value);
    }
    body
}

/// One connection. One thread sends its requests at their times, another one receives the answers.
struct Lane {
    /// The scheduled time of the pending request of each stream, in nanoseconds since the start.
    due: Vec<AtomicU64>,
    free: Mutex<Vec<u16>>,
    ended: AtomicBool,
}

fn answers(stream: TcpStream, lane: &Lane, tally: &Tally, start: Instant) {
    while let Ok(response) = receive(&stream) {
        let id = response.stream;
        let (now, due) = (start.elapsed(), Duration::from_nanos(lane.due[usize::from(id)].load(Ordering::Relaxed)));
        let list = match response.opcode {
            opcode::RESULT if now.saturating_sub(due) <= LATE => &tally.good,
            opcode::RESULT => &tally.late,
            _ => &tally.failed,
        };
        Tally::count(list, now);
        lane.free.lock().expect("no panic").push(id);
    }
    lane.ended.store(true, Ordering::Relaxed);
}

/// Sends request `first`, and every `step`-th after it. `interval` is the time between two
/// requests.
fn requests(mut stream: TcpStream, lane: &Lane, tally: &Tally, start: Instant, plan: &Plan, first: u64) {
    let (read, write) = (&plan.read, &plan.write);
    let mut number = first;
    let mut out = Vec::new();
    while plan.due(number) < plan.span && !lane.ended.load(Ordering::Relaxed) {
        thread::sleep(plan.due(number).saturating_sub(start.elapsed()));
        out.clear();
        while plan.due(number) <= start.elapsed() && plan.due(number) < plan.span {
            let due = plan.due(number);
            let id = lane.free.lock().expect("no panic").pop();
            let turn = number / plan.lanes;
            number += plan.lanes;
            let Some(id) = id else {
                tally.unsent.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            lane.due[usize::from(id)].store(due.as_nanos() as u64, Ordering::Relaxed);
            let key = (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % ROWS).to_be_bytes();
            let body = if turn.is_multiple_of(2) { execute(read, &[&key]) } else { execute(write, &[&key, &[7; 200]]) };
            out.extend(frame(id, opcode::EXECUTE, &body));
        }
        if let Err(error) = stream.write_all(&out) {
            assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error}");
            return;
        }
    }
}

/// The requests and their schedule.
struct Plan {
    read: Vec<u8>,
    write: Vec<u8>,
    rate: u64,
    lanes: u64,
    span: Duration,
}

impl Plan {
    fn due(&self, number: u64) -> Duration {
        Duration::from_nanos((u128::from(number) * 1_000_000_000 / u128::from(self.rate)) as u64)
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [coordinators, rate, seconds] = &arguments[..] else { panic!("quorum COORDINATORS RATE SECONDS") };
    let coordinators: Vec<&str> = coordinators.split(',').collect();
    let span = Duration::from_secs(seconds.parse().expect("a number of seconds"));
    let mut admin = Client::connect(coordinators[0], &[]);
    admin.query(
        "CREATE KEYSPACE IF NOT EXISTS quorum WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3}",
    );
    admin.query("CREATE TABLE IF NOT EXISTS quorum.t (pk bigint PRIMARY KEY, v blob)");
    thread::sleep(Duration::from_secs(1));
    let (mut read, mut write) = (Vec::new(), Vec::new());
    for address in &coordinators {
        let mut client = Client::connect(address, &[]);
        read = client.prepare("SELECT v FROM quorum.t WHERE pk = ?");
        write = client.prepare("INSERT INTO quorum.t (pk, v) VALUES (?, ?)");
    }
    let lanes = (coordinators.len() * CONNECTIONS) as u64;
    let plan = Arc::new(Plan { read, write, rate: rate.parse().expect("a rate"), lanes, span });
    let tally = Arc::new(Tally::new(span + LINGER));
    let streams: Vec<TcpStream> =
        (0..lanes as usize).map(|n| Client::connect(coordinators[n % coordinators.len()], &[]).0).collect();
    let began = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    let start = Instant::now();
    let mut writers = Vec::new();
    for (first, stream) in streams.into_iter().enumerate() {
        let lane = Arc::new(Lane {
            due: (0..STREAMS).map(|_| AtomicU64::new(0)).collect(),
            free: Mutex::new((0..STREAMS).collect()),
            ended: AtomicBool::new(false),
        });
        let incoming = stream.try_clone().expect("a second handle");
        let (own, all) = (lane.clone(), tally.clone());
        // Ends with the process, which does not wait for missing answers.
        thread::spawn(move || answers(incoming, &own, &all, start));
        let (all, plan) = (tally.clone(), plan.clone());
        writers.push(thread::spawn(move || requests(stream, &lane, &all, start, &plan, first as u64)));
    }
    for writer in writers {
        writer.join().expect("no panic");
    }
    thread::sleep(LINGER);
    println!(
        "{{\"began_ms\": {began}, \"bucket_ms\": {}, \"rate\": {}, \"good\": {}, \"late\": {}, \"failed\": {}, \"unsent\": {}}}",
        BUCKET.as_millis(),
        plan.rate,
        show(&tally.good),
        show(&tally.late),
        show(&tally.failed),
        tally.unsent.load(Ordering::Relaxed),
    );
}
