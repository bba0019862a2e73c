//! Measures the CPU cost of the framing of protocol version 5, and of TLS, compared with version 4.
//!
//!     framing ADDRESS PID [BATCHES [CERTIFICATE]]         (`make bench-protocol` runs it)
//!
//! Sends the same prepared point reads, point writes and reads of large pages in each way, in
//! alternating rounds. Prints the server's CPU time per operation for each case as JSON, with the
//! ratio to version 4. The minimum over all rounds counts, to reduce the effect of other work on
//! the machine.
//!
//! - `v5-single` has each request in a segment of its own, as the Python drivers send them.
//! - `v5` has all requests of a batch in one segment, as other drivers send them.
//! - `v5-lz4` also compresses.
//! - With the root CERTIFICATE of the node's own certificate, `v4-tls` and `v5-tls` use port 9142,
//!   and full and resumed handshakes are measured.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use server::protocol::segment::{self, Form, Header, Taken};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

const CONNECTIONS: usize = 4;
const BATCH: usize = 32;
const ROWS: u64 = 10_000;
const ROUNDS: usize = 5;

/// The protocol of a connection.
#[derive(Clone, Copy, PartialEq)]
struct Way {
    name: &'static str,
    form: Option<Form>,
    /// Each request in a segment of its own.
    single: bool,
    encrypted: bool,
}

const WAYS: [Way; 6] = [
    Way { name: "v4", form: None, single: false, encrypted: false },
    Way { name: "v5", form: Some(Form::Plain), single: false, encrypted: false },
    Way { name: "v5-single", form: Some(Form::Plain), single: true, encrypted: false },
    Way { name: "v5-lz4", form: Some(Form::Lz4), single: false, encrypted: false },
    Way { name: "v4-tls", form: None, single: false, encrypted: true },
    Way { name: "v5-tls", form: Some(Form::Plain), single: false, encrypted: true },
];

const HANDSHAKES: usize = 300;

/// The address of the node, and its root certificate.
struct Node {
    address: String,
    tls: Option<Arc<ClientConfig>>,
}

impl Node {
    fn new(address: &str, root: Option<&String>) -> Node {
        Node { address: address.to_string(), tls: root.map(|root| Arc::new(client_config(root))) }
    }

    fn stream(&self, encrypted: bool) -> Stream {
        let port = if encrypted { 9142 } else { 9042 };
        let plain = TcpStream::connect((self.address.as_str(), port)).expect("connected");
        plain.set_nodelay(true).expect("no delay");
        let Some(config) = self.tls.clone().filter(|_| encrypted) else { return Stream::Plain(plain) };
        let name = ServerName::try_from(self.address.clone()).expect("an address");
        Stream::Tls(Box::new(StreamOwned::new(ClientConnection::new(config, name).expect("a connection"), plain)))
    }
}

fn client_config(root: &str) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(root).expect("a certificate")).expect("a root");
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// The stream of a connection.
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

/// One connection.
struct Speaker {
    way: Way,
    stream: Stream,
    input: bytes::BytesMut,
    /// Bytes of incomplete frames.
    begun: Vec<u8>,
    started: bool,
}

impl Speaker {
    fn connect(node: &Node, way: Way) -> Speaker {
        let stream = node.stream(way.encrypted);
        let mut it = Speaker { way, stream, input: bytes::BytesMut::new(), begun: Vec::new(), started: false };
        let mut options = vec![("CQL_VERSION", "3.0.0")];
        if way.form == Some(Form::Lz4) {
            options.push(("COMPRESSION", "lz4"));
        }
        let mut body = (options.len() as u16).to_be_bytes().to_vec();
        for text in options.iter().flat_map(|(key, value)| [key, value]) {
            body.extend((text.len() as u16).to_be_bytes());
            body.extend(text.as_bytes());
        }
        let frame = it.frame(0x01, &body);
        it.send(&[frame]);
        assert_eq!(it.receive(1)[0].0, 0x02, "READY");
        it.started = true;
        it
    }

    fn frame(&self, opcode: u8, body: &[u8]) -> Vec<u8> {
        let version = if self.way.form.is_some() { 5 } else { 4 };
        let mut out = vec![version, 0, 0, 0, opcode];
        out.extend((body.len() as u32).to_be_bytes());
        out.extend(body);
        out
    }

    fn send(&mut self, frames: &[Vec<u8>]) {
        let bytes = match self.way.form.filter(|_| self.started) {
            None => frames.concat(),
            Some(form) if self.way.single => frames.iter().flat_map(|frame| wrap(form, frame)).collect(),
            Some(form) => wrap(form, &frames.concat()),
        };
        self.stream.write_all(&bytes).and_then(|()| self.stream.flush()).expect("sent");
    }

    /// Opcodes and bodies of the next answers. Large bodies are left out.
    fn receive(&mut self, count: usize) -> Vec<(u8, Vec<u8>)> {
        let mut answers = Vec::with_capacity(count);
        let mut buffer = [0; 64 << 10];
        loop {
            while let [_, _, _, _, opcode, l0, l1, l2, l3, rest @ ..] = &self.begun[..] {
                let len = u32::from_be_bytes([*l0, *l1, *l2, *l3]) as usize;
                if rest.len() < len {
                    break;
                }
                let body = if len < 4096 { rest[..len].to_vec() } else { Vec::new() };
                answers.push((*opcode, body));
                self.begun.drain(..9 + len);
            }
            if answers.len() == count {
                return answers;
            }
            let n = self.stream.read(&mut buffer).expect("read");
            assert!(n > 0, "the server closed the connection");
            match self.way.form.filter(|_| self.started) {
                None => self.begun.extend_from_slice(&buffer[..n]),
                Some(form) => {
                    self.input.extend_from_slice(&buffer[..n]);
                    while let Taken::Segment(segment) = segment::take(form, &mut self.input) {
                        self.begun.extend_from_slice(&segment.payload);
                    }
                }
            }
        }
    }

    fn ask(&mut self, opcode: u8, body: &[u8]) -> Vec<u8> {
        let frame = self.frame(opcode, body);
        self.send(&[frame]);
        let (opcode, body) = self.receive(1).remove(0);
        assert_eq!(opcode, 0x08, "{}", String::from_utf8_lossy(&body));
        body
    }

    fn query(&mut self, text: &str) {
        let flags: &[u8] = if self.way.form.is_some() { &[0, 1, 0, 0, 0, 0] } else { &[0, 1, 0] };
        self.ask(0x07, &[&(text.len() as u32).to_be_bytes()[..], text.as_bytes(), flags].concat());
    }

    /// The part of an EXECUTE before the values: ids, level, flags.
    fn prepare(&mut self, text: &str) -> Vec<u8> {
        let flags: &[u8] = if self.way.form.is_some() { &[0; 4] } else { &[] };
        let prepared = self.ask(0x09, &[&(text.len() as u32).to_be_bytes()[..], text.as_bytes(), flags].concat());
        // The statement's id, and in version 5 the id of its result metadata; LOCAL_ONE; flags for
        // values, without metadata.
        match self.way.form {
            None => [&prepared[4..22], &[0, 10, 3]].concat(),
            Some(_) => [&prepared[4..40], &[0, 10, 0, 0, 0, 3]].concat(),
        }
    }
}

fn wrap(form: Form, payload: &[u8]) -> Vec<u8> {
    let closed = if form == Form::Lz4 { segment::close(payload) } else { None };
    let bytes = closed.as_deref().unwrap_or(payload);
    let mut out = vec![0; form.header_len()];
    let opened = closed.as_ref().map_or(0, |_| payload.len());
    Header { payload: bytes.len(), opened, self_contained: true }.write(form, &mut out);
    out.extend_from_slice(bytes);
    out.extend_from_slice(&segment::payload_crc(&[bytes]).to_le_bytes());
    out
}

/// The body of an EXECUTE.
fn execute(head: &[u8], values: &[&[u8]]) -> Vec<u8> {
    let mut body = head.to_vec();
    body.extend((values.len() as u16).to_be_bytes());
    for value in values {
        body.extend((value.len() as u32).to_be_bytes());
        body.extend_from_slice(value);
    }
    body
}

/// CPU time of all threads of the server, in nanoseconds.
fn cpu(pid: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the server lives");
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok())
        .filter_map(|stat| stat.split(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// Runs `batches` of one case on all connections. Returns the server's nanoseconds per operation.
fn run(speakers: &mut [Speaker], pid: &str, case: &str, statement: &str, batches: usize, batch: usize) -> f64 {
    let value = [7; 200];
    let heads: Vec<Vec<u8>> = speakers.iter_mut().map(|speaker| speaker.prepare(statement)).collect();
    let mut at = 0u64;
    let mut turn = |speakers: &mut [Speaker]| {
        for (speaker, head) in speakers.iter_mut().zip(&heads) {
            let frames: Vec<Vec<u8>> = (0..batch)
                .map(|_| {
                    at += 1;
                    let pk = (at.wrapping_mul(7919) % ROWS).to_be_bytes();
                    let body = if case == "write" { execute(head, &[&pk, &value]) } else { execute(head, &[&pk]) };
                    speaker.frame(0x0A, &body)
                })
                .collect();
            speaker.send(&frames);
        }
        for speaker in speakers.iter_mut() {
            let answers = speaker.receive(batch);
            assert!(answers.iter().all(|(opcode, _)| *opcode == 0x08), "an error among the answers");
        }
    };
    for _ in 0..batches / 10 {
        turn(speakers);
    }
    let before = cpu(pid);
    for _ in 0..batches {
        turn(speakers);
    }
    (cpu(pid) - before) as f64 / (batches * batch * speakers.len()) as f64
}

/// The cost of a connection up to the answer to STARTUP: without TLS, with a full handshake, with a
/// resumed one.
fn handshakes(address: &str, pid: &str, root: &String) {
    let remembering = Node::new(address, Some(root));
    for (name, encrypted, resumed) in [("plain", false, false), ("tls-whole", true, false), ("tls-resumed", true, true)]
    {
        let speak = || {
            let own = (!resumed).then(|| Node::new(address, Some(root)));
            let way = if encrypted { WAYS[4] } else { WAYS[0] };
            Speaker::connect(own.as_ref().unwrap_or(&remembering), way);
        };
        speak();
        let before = cpu(pid);
        (0..HANDSHAKES).for_each(|_| speak());
        let micros = (cpu(pid) - before) as f64 / HANDSHAKES as f64 / 1000.0;
        println!("{{\"case\": \"connect\", \"way\": \"{name}\", \"server_us_per_op\": {micros:.1}}}");
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, pid, rest @ ..] = &arguments[..] else { panic!("framing ADDRESS PID [BATCHES [CERTIFICATE]]") };
    let batches: usize = rest.first().map_or(2000, |batches| batches.parse().expect("a number"));
    let node = Node::new(address, rest.get(1));
    let ways: Vec<Way> = WAYS.into_iter().filter(|way| !way.encrypted || node.tls.is_some()).collect();
    let mut admin = Speaker::connect(&node, WAYS[0]);
    admin.query("DROP KEYSPACE IF EXISTS framing");
    admin.query(
        "CREATE KEYSPACE framing WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}",
    );
    admin.query("CREATE TABLE framing.t (pk bigint PRIMARY KEY, v blob)");
    admin.query("CREATE TABLE framing.pages (pk bigint, ck bigint, v blob, PRIMARY KEY (pk, ck))");
    let insert = admin.prepare("INSERT INTO framing.t (pk, v) VALUES (?, ?)");
    for pk in 0..ROWS {
        admin.ask(0x0A, &execute(&insert, &[&pk.to_be_bytes(), &[7; 200]]));
    }
    let insert = admin.prepare("INSERT INTO framing.pages (pk, ck, v) VALUES (?, ?, ?)");
    for ck in 0..900u64 {
        // Data that LZ4 makes a little shorter.
        let value: Vec<u8> = (0..1000u64).map(|n| ((n * n % 251 * (ck + 1)) >> 2) as u8 & 0x3F).collect();
        admin.ask(0x0A, &execute(&insert, &[&1u64.to_be_bytes(), &ck.to_be_bytes(), &value]));
    }
    let cases = [
        ("read", "SELECT v FROM framing.t WHERE pk = ?", batches, BATCH),
        ("write", "INSERT INTO framing.t (pk, v) VALUES (?, ?)", batches, BATCH),
        ("read-one-at-a-time", "SELECT v FROM framing.t WHERE pk = ?", batches * 4, 1),
        ("page-of-900-kb", "SELECT v FROM framing.pages WHERE pk = 1 AND ck >= 0 AND ck < ?", batches / 20, 1),
    ];
    let mut speakers: Vec<Vec<Speaker>> =
        ways.iter().map(|way| (0..CONNECTIONS).map(|_| Speaker::connect(&node, *way)).collect()).collect();
    for (case, statement, batches, batch) in cases {
        let mut least = vec![f64::MAX; ways.len()];
        for _ in 0..ROUNDS {
            for (least, speakers) in least.iter_mut().zip(&mut speakers) {
                *least = least.min(run(speakers, pid, case, statement, batches, batch));
            }
        }
        for (way, nanos) in ways.iter().zip(&least) {
            println!(
                "{{\"case\": \"{case}\", \"way\": \"{}\", \"server_us_per_op\": {:.3}, \"ratio_to_v4\": {:.4}}}",
                way.name,
                nanos / 1000.0,
                nanos / least[0],
            );
        }
    }
    if let Some(root) = rest.get(1) {
        handshakes(address, pid, root);
    }
    admin.query("DROP KEYSPACE framing");
}
