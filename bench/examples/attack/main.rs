//! A raw load of point reads or writes. It never pauses, whatever the answers are, and counts the
//! outcome of each request.
//!
//!     attack HOSTS TABLE [NAME=VALUE]...          (`make bench-goodput` runs it)
//!
//! HOSTS are addresses, separated by commas. TABLE is KEYSPACE.TABLE, with the columns `pk bigint
//! PRIMARY KEY, v blob`. A value starts with its key, so that each value that is read is checked.
//!
//! - `op`: `read` or `write`; `level`: `one`, `quorum` or `all`.
//! - `keys`, `first`: so many keys, from this one on. They are chosen uniformly, or by a Zipf
//!   distribution with the exponent `zipf`. `once=true` takes each key once.
//! - `value`: bytes of a value that is written.
//! - `plan`: phases `RATE:SECONDS`, separated by commas. With the rate 0, `flight` requests are in
//!   flight all the time (closed loop). Otherwise each request is sent at its time (open loop).
//! - `connections`: to each host. `route=any` uses them all alike, `route=owner` sends a request
//!   only to shards that own its key.
//! - `at`: when to start, in milliseconds since 1970; otherwise at a full second.
//!
//! Prints two lines of JSON: the start time as soon as it is known, and the result. The result has
//! counts for each tenth of a second and for each phase: requests that were good (answered within
//! 500 ms of their time), late, refused by a rate limit, failed, or not sent. A request is not sent
//! if it is 500 ms late already, or if no stream is free. In the open loop, the latency of a
//! request counts from its scheduled time. If the loader itself was not late, it counts from the
//! end of the wait for that time.

mod options;
mod tally;

use bench::wire::{Client, HAS_PAYLOAD, HEADER, opcode};
use options::{Operation, Options, Route};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tally::{Outcome, Tally};

/// The most pending requests of a connection.
const STREAMS: u16 = 16_384;
/// When an answer is late.
const LATE: Duration = Duration::from_millis(500);
/// How long to wait for answers after the last request.
const LINGER: Duration = Duration::from_secs(2);
/// The shortest wait of the open loop: it sends what became due meanwhile at once.
const TICK: Duration = Duration::from_micros(200);
/// The bytes that are read at once.
const READ: usize = 256 << 10;
/// The hottest keys of a Zipf distribution that are counted.
const HEAD: usize = 128;
/// How often a key is read to find its owner, while a rate limit refuses the reads.
const PROBES: usize = 10;
/// The errors of a rate limit: for clients that negotiated it, and for others.
const REFUSALS: [i32; 2] = [0xF000, 0x2300];

/// The request of a stream.
#[derive(Default)]
struct Slot {
    /// When it was due, in nanoseconds since the start.
    due: AtomicU64,
    key: AtomicI64,
}

/// A connection. One thread receives its answers. In the open loop, another one sends requests.
struct Lane {
    stream: TcpStream,
    /// The only keys of its requests. None: all.
    keys: Option<Vec<i64>>,
    slots: Vec<Slot>,
    free: Mutex<Vec<u16>>,
    /// The open loop has sent its last request.
    ended: AtomicBool,
}

/// What all connections share.
struct Load {
    options: Options,
    /// The id of the prepared statement, with its length.
    id: Vec<u8>,
    start: Instant,
    /// The phases: number of the first request, start, rate.
    phases: Vec<(u64, Duration, u64)>,
    end: Duration,
    /// The cumulated distribution of a Zipf load.
    shares: Vec<f64>,
    /// The next key of a load that takes each key once.
    next: AtomicU64,
    /// Good requests of the hottest keys.
    head: Vec<AtomicU64>,
}

/// xorshift64*
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// In [0, 1).
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Load {
    fn phase_at(&self, due: Duration) -> usize {
        self.phases.iter().rposition(|(_, start, _)| *start <= due).unwrap_or(0)
    }

    /// The time of a request of the open loop. None: after the end.
    fn due(&self, number: u64) -> Option<Duration> {
        let (first, start, rate) = self.phases.iter().rev().find(|(first, ..)| *first <= number)?;
        let nanos = u128::from(number - first) * 1_000_000_000 / u128::from(*rate);
        Some(*start + Duration::from_nanos(nanos as u64)).filter(|due| *due < self.end)
    }

    /// The key of the next request. None: each key was taken once.
    fn key(&self, lane: &Lane, random: &mut Random) -> Option<i64> {
        let Options { first, keys, once, .. } = self.options;
        if once {
            let number = self.next.fetch_add(1, Relaxed);
            return (number < keys).then(|| first + number as i64);
        }
        if let Some(keys) = &lane.keys {
            return Some(keys[random.below(keys.len() as u64) as usize]);
        }
        let number = match self.shares.is_empty() {
            true => random.below(keys),
            false => {
                let share = random.share();
                self.shares.partition_point(|cumulated| *cumulated < share).min(self.shares.len() - 1) as u64
            }
        };
        Some(first + number as i64)
    }

    /// Appends a request. False: there is none left.
    fn request(&self, out: &mut Vec<u8>, lane: &Lane, stream: u16, due: Duration, random: &mut Random) -> bool {
        let Some(key) = self.key(lane, random) else { return false };
        let slot = &lane.slots[usize::from(stream)];
        slot.due.store(due.as_nanos() as u64, Relaxed);
        slot.key.store(key, Relaxed);
        let at = out.len();
        out.extend([4, 0, (stream >> 8) as u8, stream as u8, opcode::EXECUTE, 0, 0, 0, 0]);
        out.extend(&self.id);
        out.extend(self.options.level.to_be_bytes());
        // Flags: values, no metadata.
        out.push(0x01 | 0x02);
        let writes = self.options.operation == Operation::Write;
        out.extend((1 + u16::from(writes)).to_be_bytes());
        out.extend(8u32.to_be_bytes());
        out.extend(key.to_be_bytes());
        if writes {
            let size = self.options.value.max(8);
            out.extend((size as u32).to_be_bytes());
            let value = out.len();
            out.extend(key.to_be_bytes());
            out.resize(value + size, 7);
        }
        let len = (out.len() - at - HEADER) as u32;
        out[at + 5..at + HEADER].copy_from_slice(&len.to_be_bytes());
        true
    }

    /// Counts an answer.
    fn answered(&self, slot: &Slot, frame: &[u8], now: Duration, tally: &mut Tally) {
        let due = Duration::from_nanos(slot.due.load(Relaxed));
        let latency = now.saturating_sub(due);
        let body = &frame[HEADER..];
        let outcome = if frame[4] == opcode::RESULT {
            // Without flags, nothing precedes the result.
            if frame[1] == 0 && self.options.operation == Operation::Read {
                self.check(slot.key.load(Relaxed), body, tally);
            }
            if latency <= LATE { Outcome::Good } else { Outcome::Late }
        } else {
            let code = i32::from_be_bytes([body[0], body[1], body[2], body[3]]);
            if REFUSALS.contains(&code) {
                Outcome::Refused
            } else {
                tally.error(code);
                Outcome::Failed
            }
        };
        tally.count(outcome, self.phase_at(due), now, latency);
    }

    /// Checks the rows of a read: kind, flags, columns, number of rows, then the value.
    fn check(&self, key: i64, rows: &[u8], tally: &mut Tally) {
        match rows.get(12..16) {
            Some([0, 0, 0, 1]) if rows.get(20..28) == Some(&key.to_be_bytes()[..]) => {
                let rank = usize::try_from(key - self.options.first).unwrap_or(usize::MAX);
                if let Some(count) = self.head.get(rank) {
                    count.fetch_add(1, Relaxed);
                }
            }
            Some([0, 0, 0, 0]) => tally.missing += 1,
            _ => tally.corrupt += 1,
        }
    }
}

/// Receives the answers of a connection until all requests are answered. `again` gets the streams
/// that are free again and the current time. It returns whether more answers are expected.
fn receive(lane: &Lane, load: &Load, mut again: impl FnMut(&mut Vec<u16>, Duration) -> bool) -> Tally {
    let mut tally = Tally::new(load.phases.len());
    let mut stream = &lane.stream;
    stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    let (mut buffer, mut filled) = (vec![0; READ], 0);
    let mut answered = Vec::new();
    loop {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{error}"),
        }
        let now = load.start.elapsed();
        let mut at = 0;
        while filled - at >= HEADER {
            let head = &buffer[at..];
            let len = HEADER + u32::from_be_bytes([head[5], head[6], head[7], head[8]]) as usize;
            if filled - at < len {
                if len > buffer.len() {
                    buffer.resize(len, 0);
                }
                break;
            }
            let id = u16::from_be_bytes([buffer[at + 2], buffer[at + 3]]);
            load.answered(&lane.slots[usize::from(id)], &buffer[at..at + len], now, &mut tally);
            answered.push(id);
            at += len;
        }
        buffer.copy_within(at..filled, 0);
        filled -= at;
        if !again(&mut answered, now) || now > load.end + LINGER {
            break;
        }
    }
    tally
}

/// The closed loop of a connection.
fn closed(lane: &Lane, load: &Load, flight: u16, seed: u64) -> Tally {
    let mut random = Random(seed);
    let mut out = Vec::new();
    let mut pending = usize::from(flight);
    let mut send = |streams: &mut Vec<u16>, now: Duration| {
        out.clear();
        for stream in streams.drain(..) {
            if now >= load.end || !load.request(&mut out, lane, stream, now, &mut random) {
                pending -= 1;
            }
        }
        (&lane.stream).write_all(&out).is_ok() && pending > 0
    };
    thread::sleep(load.start.saturating_duration_since(Instant::now()));
    if !send(&mut (0..flight).collect(), load.start.elapsed()) {
        return Tally::new(load.phases.len());
    }
    receive(lane, load, send)
}

/// Sends request `first` of the open loop, and every `step`-th after it. Returns those that were
/// not sent.
fn open(lane: &Lane, load: &Load, first: u64, step: u64, seed: u64) -> Tally {
    let mut random = Random(seed);
    let mut tally = Tally::new(load.phases.len());
    let (mut number, mut out) = (first, Vec::new());
    thread::sleep(load.start.saturating_duration_since(Instant::now()));
    while let Some(next) = load.due(number) {
        let mut now = load.start.elapsed();
        let wait = next.saturating_sub(now);
        if !wait.is_zero() {
            thread::sleep(wait.max(TICK));
            now = load.start.elapsed();
        }
        out.clear();
        let mut streams = std::mem::take(&mut *lane.free.lock().expect("no panic"));
        while let Some(due) = load.due(number).filter(|due| *due <= now) {
            number += step;
            let stream = if now - due > LATE { None } else { streams.pop() };
            let Some(stream) = stream else {
                tally.count(Outcome::Unsent, load.phase_at(due), due, Duration::ZERO);
                continue;
            };
            let from = if wait.is_zero() { due } else { now };
            load.request(&mut out, lane, stream, from, &mut random);
        }
        lane.free.lock().expect("no panic").append(&mut streams);
        if (&lane.stream).write_all(&out).is_err() {
            break;
        }
    }
    lane.ended.store(true, Relaxed);
    tally
}

fn answers_of_open(lane: &Lane, load: &Load) -> Tally {
    receive(lane, load, |streams, _| {
        let mut free = lane.free.lock().expect("no panic");
        free.append(streams);
        !lane.ended.load(Relaxed) || free.len() < usize::from(STREAMS)
    })
}

/// Rate limit errors are distinguished from other errors.
const STARTUP: [(&str, &str); 1] = [("SCYLLA_RATE_LIMIT_ERROR", "")];
/// Answers say whether the request reached an owner.
const PROBE: [(&str, &str); 1] = [("TABLETS_ROUTING_V1", "")];

/// The shards of a host that own keys, with these keys.
fn owners(options: &Options, host: &str) -> Vec<(u32, Vec<i64>)> {
    let shards = Client::connect(host, &[]).shard().1;
    let mut found = Vec::new();
    for shard in 0..shards {
        let mut client = Client::connect_to_shard(host, shard, &PROBE);
        let id = client.prepare(&options.select());
        let mut owns = |key: &i64| {
            let mut body = id.clone();
            body.extend(options.level.to_be_bytes());
            body.extend([0x01 | 0x02, 0, 1, 0, 0, 0, 8]);
            body.extend(key.to_be_bytes());
            for _ in 0..PROBES {
                let response = client.ask(opcode::EXECUTE, &body);
                if response.opcode == opcode::RESULT {
                    return response.flags & HAS_PAYLOAD == 0;
                }
                // A rate limit: the count is lower in the next second.
                thread::sleep(Duration::from_secs(1));
            }
            panic!("{host}: key {key} cannot be read");
        };
        let keys: Vec<i64> = (0..options.keys).map(|n| options.first + n as i64).filter(|key| owns(key)).collect();
        if !keys.is_empty() {
            found.push((shard, keys));
        }
    }
    found
}

/// The connections, and the id of the statement.
fn connect(options: &Options) -> (Vec<Lane>, Vec<u8>) {
    let (mut lanes, mut id) = (Vec::new(), Vec::new());
    for host in &options.hosts {
        let owners = if options.route == Route::Owner { owners(options, host) } else { Vec::new() };
        for n in 0..options.connections {
            let owner = owners.get(n % owners.len().max(1));
            let mut client = match (options.route, owner) {
                (Route::Any, _) => Client::connect(host, &STARTUP),
                (Route::Owner, Some((shard, _))) => Client::connect_to_shard(host, *shard, &STARTUP),
                (Route::Owner, None) => break,
            };
            if n == 0 {
                id = client.prepare(&options.statement());
            }
            lanes.push(Lane {
                stream: client.0,
                keys: owner.map(|(_, keys)| keys.clone()),
                slots: (0..STREAMS).map(|_| Slot::default()).collect(),
                free: Mutex::new((0..STREAMS).rev().collect()),
                ended: AtomicBool::new(false),
            });
        }
    }
    assert!(!lanes.is_empty(), "no shard owns the keys");
    (lanes, id)
}

fn zipf(options: &Options) -> Vec<f64> {
    if options.zipf == 0.0 {
        return Vec::new();
    }
    let (mut sum, mut cumulated) = (0.0, Vec::new());
    for rank in 1..=options.keys {
        sum += (rank as f64).powf(-options.zipf);
        cumulated.push(sum);
    }
    cumulated.iter_mut().for_each(|share| *share /= sum);
    cumulated
}

/// The wall-clock time of the start in milliseconds, and the start.
fn start_of(options: &Options) -> (u64, Instant) {
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64;
    let at = options.at.unwrap_or((millis / 1000 + 1) * 1000).max(millis);
    (at, Instant::now() + Duration::from_millis(at - millis))
}

fn main() {
    let options = Options::parse(std::env::args().skip(1));
    let (lanes, id) = connect(&options);
    let (began, start) = start_of(&options);
    println!("{{\"began_ms\": {began}}}");
    let (mut phases, mut number, mut end) = (Vec::new(), 0, Duration::ZERO);
    for phase in &options.plan {
        phases.push((number, end, phase.rate));
        number += (phase.rate as f64 * phase.span.as_secs_f64()) as u64;
        end += phase.span;
    }
    let (shares, next) = (zipf(&options), AtomicU64::new(0));
    let head = (0..if shares.is_empty() { 0 } else { HEAD }).map(|_| AtomicU64::new(0)).collect();
    if options.once {
        end = Duration::from_secs(3600);
    }
    let load = Arc::new(Load { options, id, start, phases, end, shares, next, head });
    let count = lanes.len();
    let mut threads = Vec::new();
    for (n, lane) in lanes.into_iter().enumerate() {
        let seed = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(began + n as u64 + 1) | 1;
        let (lane, load) = (Arc::new(lane), load.clone());
        if load.options.is_closed() {
            let flight = load.options.flight / count + usize::from(n < load.options.flight % count);
            threads.push(thread::spawn(move || closed(&lane, &load, flight as u16, seed)));
            continue;
        }
        let (own, all) = (lane.clone(), load.clone());
        threads.push(thread::spawn(move || answers_of_open(&own, &all)));
        threads.push(thread::spawn(move || open(&lane, &load, n as u64, count as u64, seed)));
    }
    let mut tally = Tally::new(load.phases.len());
    for thread in threads {
        tally.add(thread.join().expect("no panic"));
    }
    let spans: Vec<f64> = load.options.plan.iter().map(|phase| phase.span.as_secs_f64()).collect();
    let head: Vec<String> = load.head.iter().map(|count| count.load(Relaxed).to_string()).collect();
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{{\"began_ms\": {began}, \"seconds\": {seconds:.3}, {}, \"head\": [{}]}}",
        tally.json(&spans),
        head.join(", ")
    );
}
