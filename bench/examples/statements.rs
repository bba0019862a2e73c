//! Measures the cost of statements before they run: parsing typical statements, and preparing and
//! executing many different ones.
//!
//!     statements ADDRESS [COUNT]         (`make bench-protocol` runs it)
//!
//! Statements are parsed in this process. COUNT (100,000) different statements are prepared and
//! executed once each on the node at the address, on one connection, one after the other. Prints
//! JSON.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// Typical statements of applications, by kind.
const TYPICAL: [(&str, &str); 6] = [
    ("point read", "SELECT name, address, created FROM shop.customers WHERE id = ?"),
    (
        "insert",
        "INSERT INTO shop.orders (customer, day, id, items, total, note) VALUES (?, ?, ?, ?, ?, ?) USING TTL 86400",
    ),
    (
        "update",
        "UPDATE shop.customers SET name = 'Ann O''Hara', tags = tags + {'new'}, visits['web'] = 3 WHERE id = 42 AND region = 'eu'",
    ),
    (
        "slice",
        "SELECT id, total, writetime(note) AS written FROM shop.orders WHERE customer = ? AND day = '2026-11-20' AND (hour, minute) >= (?, ?) \
         ORDER BY hour DESC LIMIT 100 ALLOW FILTERING",
    ),
    (
        "batch",
        "BEGIN UNLOGGED BATCH USING TIMESTAMP 1700000000000000 INSERT INTO shop.a (k, v) VALUES (1, 'one'); \
         UPDATE shop.b SET v = 2 WHERE k = 1; DELETE v FROM shop.c WHERE k = 1 APPLY BATCH",
    ),
    (
        "create table",
        "CREATE TABLE IF NOT EXISTS shop.events (customer uuid, day date, at timestamp, kind text, body map<text, frozen<list<int>>>, \
         PRIMARY KEY ((customer, day), at)) WITH CLUSTERING ORDER BY (at DESC) AND comment = 'what happened' AND compaction = {'class': \
         'LeveledCompactionStrategy'}",
    ),
];

/// How often each statement is parsed in a round.
const PARSES: u32 = 20_000;
/// The best of these counts.
const ROUNDS: u32 = 5;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, rest @ ..] = &arguments[..] else { panic!("statements ADDRESS [COUNT]") };
    let count: u32 = rest.first().map_or(100_000, |count| count.parse().expect("a number"));
    parse();
    prepare(address, count);
}

fn parse() {
    let mut each = Vec::new();
    for (name, text) in TYPICAL {
        let round = || {
            let began = Instant::now();
            for _ in 0..PARSES {
                std::hint::black_box(cql::syntax::parse(std::hint::black_box(text)).expect("a statement"));
            }
            began.elapsed().as_secs_f64() * 1e6 / f64::from(PARSES)
        };
        each.push((name, (0..ROUNDS).map(|_| round()).fold(f64::MAX, f64::min)));
    }
    let worst = each.iter().map(|(_, micros)| *micros).fold(0.0, f64::max);
    let each: Vec<String> = each.iter().map(|(name, micros)| format!("\"{name}\": {micros:.2}")).collect();
    println!("{{\"case\": \"parse\", \"us\": {{{}}}, \"us_worst\": {worst:.2}}}", each.join(", "));
}

/// A connection in version 4.
struct Connection(TcpStream);

impl Connection {
    fn ask(&mut self, opcode: u8, body: &[u8]) -> Vec<u8> {
        let frame = [&[4, 0, 0, 0, opcode][..], &(body.len() as u32).to_be_bytes(), body].concat();
        self.0.write_all(&frame).expect("sent");
        let mut head = [0; 9];
        self.0.read_exact(&mut head).expect("answered");
        let mut answer = vec![0; u32::from_be_bytes([head[5], head[6], head[7], head[8]]) as usize];
        self.0.read_exact(&mut answer).expect("answered");
        assert_ne!(head[4], 0, "{}", String::from_utf8_lossy(&answer));
        answer
    }

    fn query(&mut self, text: &str) {
        self.ask(0x07, &[&(text.len() as u32).to_be_bytes()[..], text.as_bytes(), &[0, 1, 0]].concat());
    }
}

fn prepare(address: &str, count: u32) {
    let stream = TcpStream::connect((address, 9042)).expect("connected");
    stream.set_nodelay(true).expect("no delay");
    let mut connection = Connection(stream);
    connection.ask(0x01, b"\0\x01\0\x0bCQL_VERSION\0\x053.0.0");
    connection.query("DROP KEYSPACE IF EXISTS many");
    connection
        .query("CREATE KEYSPACE many WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}");
    connection.query("CREATE TABLE many.t (pk int PRIMARY KEY, v int)");
    let began = Instant::now();
    for n in 0..count {
        let text = format!("SELECT v FROM many.t WHERE pk = {n}");
        let answer = connection.ask(0x09, &[&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat());
        // The kind of the result, then the id; LOCAL_ONE without flags.
        connection.ask(0x0A, &[&answer[4..22], &[0, 10, 0]].concat());
    }
    let micros = began.elapsed().as_secs_f64() * 1e6 / f64::from(count);
    connection.query("DROP KEYSPACE many");
    println!("{{\"case\": \"prepare\", \"statements\": {count}, \"us_per_cycle\": {micros:.1}}}");
}
