//! Connections over in-memory sockets, with a fake of the query processor.

use super::drive;
use super::service::Service;
use super::transport::{Limits, NodeFacts, Server};
use crate::protocol::{Compression, Opcode, flag};
use bytes::Bytes;
use cql::Error;
use cql::api::{
    Batch, ClientState, Prepared, QueryParams, ResultKind, ResultMetadata, Rows, SchemaAction, SchemaChange,
    SchemaTarget, StatementResult,
};
use cql::rate_limit_error::RateLimitError;
use model::TableId;
use replica::{Excess, LimitKind, LimitedBy, RateLimited};
use rt::shard::PerShard;
use rt::sync::{Notify, Semaphore};
use rt::time::{Duration, Instant, timeout};
use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use uuid::Uuid;

/// A fake of the query processor whose statements are commands.
pub(super) struct Fake {
    pub release: Semaphore,
    pub cancelled: Cell<usize>,
    pub gone: Notify,
    pub texts: RefCell<Vec<String>>,
    /// When each of them was received.
    pub received: RefCell<Vec<Option<Instant>>>,
}

impl Fake {
    fn new() -> Rc<Fake> {
        Rc::new(Fake {
            release: Semaphore::new(0),
            cancelled: Cell::new(0),
            gone: Notify::new(),
            texts: RefCell::default(),
            received: RefCell::default(),
        })
    }
}

fn rows(len: usize) -> StatementResult {
    StatementResult::new(ResultKind::Rows(Rows {
        metadata: Rc::new(ResultMetadata::default()),
        paging_state: None,
        count: 1,
        body: Bytes::from(vec![b'r'; len]),
    }))
}

impl Service for Fake {
    async fn query(
        &self,
        client: &Rc<ClientState>,
        text: &str,
        params: &QueryParams,
    ) -> Result<StatementResult, Error> {
        self.texts.borrow_mut().push(text.to_owned());
        self.received.borrow_mut().push(params.received);
        match text.split_once(' ').unwrap_or((text, "")) {
            ("rows", len) => Ok(rows(len.parse().expect("a length"))),
            ("noise", len) => {
                let mut state = 1u32;
                let noise = |_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                };
                let body: Vec<u8> = (0..len.parse().expect("a length")).map(noise).collect();
                let rows = Rows { metadata: Rc::default(), paging_state: None, count: 1, body: body.into() };
                Ok(StatementResult::new(ResultKind::Rows(rows)))
            }
            ("UPDATE" | "late", len) => {
                self.release.acquire().await.expect("open").forget();
                Ok(rows(len.parse().expect("a length")))
            }
            ("use", name) => Ok(StatementResult::new(ResultKind::SetKeyspace(name.to_owned()))),
            ("wait", _) => {
                let permit = client.cancel.unless(self.release.acquire()).await;
                match permit {
                    Some(permit) => permit.expect("open").forget(),
                    None => {
                        self.cancelled.set(self.cancelled.get() + 1);
                        self.gone.notify_one();
                    }
                }
                Ok(StatementResult::new(ResultKind::Void))
            }
            ("ddl", name) => Ok(StatementResult::new(ResultKind::SchemaChange(SchemaChange {
                action: SchemaAction::Created,
                target: SchemaTarget::Table(name.to_owned()),
                keyspace: "k".to_owned(),
            }))),
            ("where", _) => {
                let keyspace = client.keyspace.borrow().clone().unwrap_or_default();
                Err(Error::Invalid(format!("in '{keyspace}' at {:?}", params.now_in_seconds)))
            }
            ("limited", partition) => {
                let excess = Excess { limit: 1, observed: 9, retry_after_ms: 60_000 };
                let (kind, table) = (LimitKind::Read, TableId::from_bytes([1; 16]));
                let refused = RateLimited {
                    kind,
                    table,
                    by: LimitedBy::Table,
                    partition: partition.parse().expect("a number"),
                    excess,
                };
                let target = "ks.t".into();
                Err(Error::RateLimit(RateLimitError { target, refused, rejected_by_coordinator: true }))
            }
            ("warn", _) => {
                let mut answer = StatementResult::new(ResultKind::Void);
                answer.warnings.push("careful".to_owned());
                Ok(answer)
            }
            ("trace", _) => {
                assert!(params.trace.is_some_and(|id| id.get_version_num() == 1));
                Ok(StatementResult::new(ResultKind::Void))
            }
            _ => Err(Error::Syntax(format!("what is '{text}'?"))),
        }
    }

    async fn prepare(&self, client: &Rc<ClientState>, text: &str, trace: Option<Uuid>) -> Result<Prepared, Error> {
        if text == "where" {
            let keyspace = client.keyspace.borrow().clone().unwrap_or_default();
            return Err(Error::Invalid(format!("in '{keyspace}'")));
        }
        assert_eq!(trace.is_some(), text.starts_with("trace"));
        Ok(Prepared {
            id: [5; 16],
            markers: Rc::default(),
            partition_key_markers: Vec::new(),
            result: Rc::default(),
            conditional: text.contains("IF"),
            warnings: Vec::new(),
        })
    }

    async fn execute(
        &self,
        _client: &Rc<ClientState>,
        id: &[u8; 16],
        _params: &QueryParams,
    ) -> Result<StatementResult, Error> {
        match id {
            [5, ..] => Ok(rows(3)),
            _ => Err(Error::Unprepared(*id)),
        }
    }

    fn is_write(&self, _id: &[u8; 16]) -> bool {
        false
    }

    async fn batch(&self, client: &Rc<ClientState>, _batch: &Batch) -> Result<StatementResult, Error> {
        match client.keyspace.borrow().as_deref() {
            Some(keyspace) => Err(Error::Invalid(format!("in '{keyspace}'"))),
            None => Ok(StatementResult::new(ResultKind::Void)),
        }
    }
}

pub(super) struct Frame {
    pub version: u8,
    pub flags: u8,
    pub stream: i16,
    pub opcode: u8,
    pub body: Vec<u8>,
}

impl Frame {
    pub fn code(&self) -> i32 {
        assert_eq!(self.opcode, Opcode::Error as u8, "an answer, not an error: {:?}", self.body);
        i32::from_be_bytes(self.body[..4].try_into().expect("four bytes"))
    }

    pub fn message(&self) -> String {
        self.code();
        let len = usize::from(u16::from_be_bytes([self.body[4], self.body[5]]));
        String::from_utf8(self.body[6..6 + len].to_vec()).expect("UTF-8")
    }
}

pub(super) struct Client {
    pub stream: DuplexStream,
}

pub(super) fn raw(version: u8, flags: u8, stream: i16, opcode: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![version, flags];
    out.extend(stream.to_be_bytes());
    out.push(opcode);
    out.extend((body.len() as i32).to_be_bytes());
    out.extend(body);
    out
}

pub(super) fn query(stream: i16, text: &str) -> Vec<u8> {
    query_with(0, stream, text)
}

pub(super) fn query_body(text: &str) -> Vec<u8> {
    let mut body = (text.len() as i32).to_be_bytes().to_vec();
    body.extend(text.as_bytes());
    body.extend([0, 1, 0]);
    body
}

fn query_with(flags: u8, stream: i16, text: &str) -> Vec<u8> {
    raw(4, flags, stream, Opcode::Query as u8, &query_body(text))
}

pub(super) fn string_map(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut out = (pairs.len() as u16).to_be_bytes().to_vec();
    for text in pairs.iter().flat_map(|(key, value)| [key, value]) {
        out.extend((text.len() as u16).to_be_bytes());
        out.extend(text.as_bytes());
    }
    out
}

impl Client {
    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("sent");
    }

    pub async fn receive(&mut self) -> Frame {
        timeout(Duration::from_secs(60), self.receive_or_end()).await.expect("in time").expect("an answer, not the end")
    }

    pub async fn receive_or_end(&mut self) -> Option<Frame> {
        let mut header = [0; 9];
        self.stream.read_exact(&mut header).await.ok()?;
        let mut body = vec![0; u32::from_be_bytes(header[5..].try_into().expect("four")) as usize];
        self.stream.read_exact(&mut body).await.ok()?;
        Some(Frame {
            version: header[0],
            flags: header[1],
            stream: i16::from_be_bytes([header[2], header[3]]),
            opcode: header[4],
            body,
        })
    }

    pub async fn ask(&mut self, bytes: &[u8]) -> Frame {
        self.send(bytes).await;
        self.receive().await
    }

    pub async fn start(&mut self, options: &[(&str, &str)]) {
        let all = [&[("CQL_VERSION", "3.0.0")], options].concat();
        let ready = self.ask(&raw(4, 0, 0, Opcode::Startup as u8, &string_map(&all))).await;
        assert_eq!(ready.opcode, Opcode::Ready as u8, "{}", ready.message());
    }
}

pub(super) fn limits() -> Limits {
    Limits {
        frame_body: 4 << 20,
        request_memory: 1 << 20,
        connection_in_flight: 100,
        shard_in_flight: 1000,
        overloaded_in_flight: 1000,
        connection_unread: 64 << 10,
        shard_unread: 1 << 20,
        unread_time: Duration::from_secs(60),
        large_frame_step: Duration::from_secs(6),
        late_refusals: Default::default(),
        longest_wait: Duration::ZERO,
    }
}

pub(super) struct World {
    pub fake: Rc<Fake>,
    pub server: Rc<Server<Fake>>,
    pub servers: PerShard<Server<Fake>>,
}

impl World {
    fn new(limits: Limits) -> World {
        let fake = Fake::new();
        let node = NodeFacts {
            host_id: Uuid::from_u128(7),
            shard_aware_port: Some(19_042),
            shard_aware_port_ssl: Some(19_142),
            address: Ipv4Addr::LOCALHOST.into(),
        };
        let server = Server::new(fake.clone(), limits, node);
        let servers = PerShard::new();
        servers.set(server.clone());
        World { fake, server, servers }
    }

    pub fn connect(&self) -> Client {
        let (here, there) = tokio::io::duplex(16 << 10);
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        rt::task::spawn(drive::serve(self.server.clone(), there, peer, None, None)).detach();
        Client { stream: here }
    }
}

pub(super) fn run<F: Future>(limits: Limits, test: impl FnOnce(World) -> F) {
    rt::block_on(async { test(World::new(limits)).await });
}

#[test]
fn a_conversation() {
    run(limits(), |world| async move {
        let mut client = world.connect();
        let supported = client.ask(&raw(4, 0, 9, Opcode::Options as u8, &[])).await;
        assert_eq!((supported.opcode, supported.stream), (Opcode::Supported as u8, 9));
        let text = String::from_utf8_lossy(&supported.body).into_owned();
        let offered = [
            "SCYLLA_SHARD",
            "SCYLLA_NR_SHARDS",
            "TABLETS_ROUTING_V1",
            "19042",
            "SCYLLA_SHARD_AWARE_PORT_SSL",
            "19142",
            "snappy",
            "4/v4",
            "5/v5",
            "SCYLLA_USE_METADATA_ID",
            "LWT_OPTIMIZATION_META_BIT_MASK=2147483648",
        ];
        for key in offered {
            assert!(text.contains(key), "{key}");
        }
        assert!(!text.contains("TABLETS_ROUTING_V2"));
        client.start(&[("DRIVER_NAME", "test"), ("SOMETHING_NEW", "x"), ("TABLETS_ROUTING_V1", "")]).await;
        let known = &world.server.transport.connections()[0];
        assert_eq!(known.option("DRIVER_NAME").as_deref(), Some("test"));
        assert!(known.client.tablets_routing.get());
        let answer = client.ask(&query(1, "use k")).await;
        assert_eq!(&answer.body[..4], [0, 0, 0, 3]);
        assert_eq!(known.client.keyspace.borrow().as_deref(), Some("k"));
        assert_eq!(client.ask(&query(2, "nonsense")).await.code(), 0x2000);
        let execute = [&[0, 16][..], &[9; 16], &[0, 1, 0]].concat();
        assert_eq!(client.ask(&raw(4, 0, 3, Opcode::Execute as u8, &execute)).await.code(), 0x2500);
        let traced = client.ask(&query_with(flag::TRACING, 4, "trace")).await;
        assert_eq!(traced.flags, flag::TRACING);
        assert_eq!(Uuid::from_slice(&traced.body[..16]).expect("an id").get_version_num(), 1);
        for (flags, text) in [(0, "statement"), (flag::TRACING, "traced statement")] {
            let body = &query_body(text)[..4 + text.len()];
            let prepared = client.ask(&raw(4, flags, 6, Opcode::Prepare as u8, body)).await;
            assert_eq!((prepared.opcode, prepared.flags), (Opcode::Result as u8, flags));
        }
        let warned = client.ask(&query(5, "warn")).await;
        assert_eq!(warned.flags, flag::WARNING);
        drop(client);
        world.server.stop().await;
        assert_eq!(world.server.transport.connection_count(), 0);
    });
}

#[test]
fn bad_input_gets_its_error_and_the_connection_lives_where_it_can() {
    let long = raw(4, 0, 1, Opcode::Query as u8, &vec![0; 2 << 20]);
    // (input, code, part of the message, whether the connection continues)
    let cases: Vec<(Vec<u8>, i32, &str, bool)> = vec![
        (raw(4, 0, 1, 0x55, b"abc"), 0x0A, "Unknown opcode 85", true),
        (raw(4, 0, 1, Opcode::Ready as u8, b""), 0x0A, "Unknown opcode 2", true),
        (raw(4, 0, 1, Opcode::Query as u8, &[0, 0, 0, 9, b'x']), 0x0A, "Malformed frame", true),
        (raw(4, 0, 1, Opcode::Query as u8, &[0xFF, 0xFF, 0xFF, 0xFF]), 0x0A, "length -1", true),
        (raw(4, 0, 1, Opcode::Query as u8, b"\0\0\0\x01q\0\x63\0"), 0x0A, "Unknown code 99", true),
        (raw(4, 0, 1, Opcode::Query as u8, b"\0\0\0\x02\xC3\x28\0\x01\0"), 0x0A, "UTF-8", true),
        (raw(4, 0, 1, Opcode::Execute as u8, b"\0\x02ab\0\x01\0"), 0x0A, "statement id", true),
        (raw(4, 0, 1, Opcode::Batch as u8, b"\x07\0\0\0\x01\0"), 0x0A, "batch type", true),
        (raw(4, flag::COMPRESSION, 1, Opcode::Query as u8, b"x"), 0x0A, "no compression", true),
        (raw(4, 0, 1, Opcode::Register as u8, b"\0\x01\0\x03abc"), 0x0A, "'abc'", true),
        (raw(4, 0, 1, Opcode::AuthResponse as u8, b"\xFF\xFF\xFF\xFF"), 0x0A, "AUTH_RESPONSE", true),
        (raw(4, 0, 1, Opcode::Startup as u8, &string_map(&[("CQL_VERSION", "3")])), 0x0A, "already started", true),
        (raw(3, 0, 1, Opcode::Query as u8, &query_body("rows 1")), 0x0A, "Invalid message version", true),
        (long, 0x2200, "Request is too big", true),
        (vec![4, 0, 0, 1, 7, 0x80, 0, 0, 0], 0x0A, "length -", false),
        (raw(6, 0, 1, Opcode::Options as u8, b""), 0x0A, "protocol version (6); supported", false),
        (raw(66, 0, 1, Opcode::Startup as u8, b"whatever"), 0x0A, "protocol version (66); supported", false),
        (raw(0x84, 0, 1, Opcode::Query as u8, b""), 0x0A, "response", false),
    ];
    run(limits(), |world| async move {
        for (bytes, code, message, alive) in cases {
            let mut client = world.connect();
            client.start(&[]).await;
            let (mut read, mut write) = tokio::io::split(client.stream);
            let sender = rt::task::spawn(async move {
                write.write_all(&bytes).await.expect("sent");
                write
            });
            let mut header = [0; 9];
            read.read_exact(&mut header).await.expect("an answer");
            let mut body = vec![0; u32::from_be_bytes(header[5..].try_into().expect("four")) as usize];
            read.read_exact(&mut body).await.expect("a body");
            let frame = Frame {
                version: header[0],
                flags: header[1],
                stream: i16::from_be_bytes([header[2], header[3]]),
                opcode: header[4],
                body,
            };
            assert_eq!((frame.code(), frame.version, frame.flags), (code, frame.version & 0x87, 0), "{message}");
            assert!(frame.message().contains(message), "{} / {message}", frame.message());
            assert_eq!(frame.stream, 1, "{message}");
            let write = sender.await.expect("sent");
            let mut client = Client { stream: read.unsplit(write) };
            if alive {
                assert_eq!(client.ask(&query(2, "rows 3")).await.stream, 2, "{message}");
            } else {
                assert!(client.receive_or_end().await.is_none(), "{message}");
            }
        }
    });
}

#[test]
fn nothing_but_options_and_startup_before_startup() {
    run(limits(), |world| async move {
        let mut client = world.connect();
        let refused = client.ask(&query(3, "rows 1")).await;
        assert_eq!(refused.code(), 0x0A);
        assert!(refused.message().contains("expecting STARTUP or OPTIONS"));
        let body = string_map(&[("DRIVER_NAME", "x")]);
        assert!(client.ask(&raw(4, 0, 1, Opcode::Startup as u8, &body)).await.message().contains("CQL_VERSION"));
        let body = string_map(&[("CQL_VERSION", "3"), ("COMPRESSION", "zip")]);
        assert!(client.ask(&raw(4, 0, 1, Opcode::Startup as u8, &body)).await.message().contains("zip"));
        client.start(&[]).await;
    });
}

#[test]
fn pipelined_requests_are_all_answered() {
    run(limits(), |world| async move {
        for (index, compression) in [None, Some("lz4"), Some("snappy")].into_iter().enumerate() {
            let mut client = world.connect();
            match compression {
                Some(name) => client.start(&[("COMPRESSION", name)]).await,
                None => client.start(&[]).await,
            }
            let compression = compression.and_then(Compression::from_name);
            let (mut read, mut write) = tokio::io::split(client.stream);
            rt::task::spawn(async move {
                for stream in 0..2000i16 {
                    let plain = query(stream, if stream % 3 == 0 { "rows 20000" } else { "rows 10" });
                    let bytes = match compression {
                        Some(compression) if stream % 2 == 0 => {
                            let mut body = Vec::new();
                            compression.compress(&plain[9..], &mut body);
                            raw(4, flag::COMPRESSION, stream, Opcode::Query as u8, &body)
                        }
                        _ => plain,
                    };
                    write.write_all(&bytes).await.expect("sent");
                }
            })
            .detach();
            for stream in 0..2000i16 {
                let mut header = [0; 9];
                read.read_exact(&mut header).await.expect("an answer");
                let mut body = vec![0; u32::from_be_bytes(header[5..].try_into().expect("four")) as usize];
                read.read_exact(&mut body).await.expect("a body");
                assert_eq!((header[0], header[4]), (0x84, Opcode::Result as u8), "case {index}");
                assert_eq!(i16::from_be_bytes([header[2], header[3]]), stream);
                if header[1] & flag::COMPRESSION != 0 {
                    body = compression.expect("negotiated").decompress(&body, 1 << 20).expect("opens").to_vec();
                }
                assert_eq!(body.len(), 16 + if stream % 3 == 0 { 20_000 } else { 10 });
            }
        }
    });
}

/// The event for the creation of table `k.t`.
pub(super) fn table_made() -> crate::protocol::Event {
    crate::protocol::Event::Schema(SchemaChange {
        action: SchemaAction::Created,
        target: SchemaTarget::Table("t".into()),
        keyspace: "k".into(),
    })
}

#[test]
fn events_reach_clients_that_registered() {
    run(limits(), |world| async move {
        let (mut one, mut two, mut three) = (world.connect(), world.connect(), world.connect());
        for client in [&mut one, &mut two, &mut three] {
            client.start(&[]).await;
        }
        let register = |name: &str| {
            let mut body = vec![0, 1];
            body.extend((name.len() as u16).to_be_bytes());
            body.extend(name.as_bytes());
            raw(4, 0, 1, Opcode::Register as u8, &body)
        };
        assert_eq!(one.ask(&register("SCHEMA_CHANGE")).await.opcode, Opcode::Ready as u8);
        assert_eq!(two.ask(&register("STATUS_CHANGE")).await.opcode, Opcode::Ready as u8);
        let result = three.ask(&query(8, "ddl t")).await;
        assert_eq!(&result.body[..4], [0, 0, 0, 5]);
        crate::events::broadcast(world.servers, vec![table_made()]).await;
        let event = one.receive().await;
        assert_eq!((event.stream, event.opcode), (-1, Opcode::Event as u8));
        assert_eq!(event.body, b"\0\x0dSCHEMA_CHANGE\0\x07CREATED\0\x05TABLE\0\x01k\0\x01t");
        let up = crate::protocol::Event::Status { up: true, node: SocketAddr::from((Ipv4Addr::LOCALHOST, 9042)) };
        crate::events::broadcast(world.servers, vec![up]).await;
        assert_eq!(two.receive().await.body, b"\0\x0dSTATUS_CHANGE\0\x02UP\x04\x7f\0\0\x01\0\0\x23\x52");
        assert_eq!(one.ask(&query(1, "rows 1")).await.stream, 1);
    });
}

#[test]
fn stopping_answers_what_was_asked() {
    run(limits(), |world| async move {
        let mut client = world.connect();
        client.start(&[]).await;
        client.send(&query(1, "wait")).await;
        while world.server.transport.in_flight() == 0 {
            rt::task::yield_now().await;
        }
        let server = world.server.clone();
        let stop = rt::task::spawn(async move { server.stop().await });
        rt::task::yield_now().await;
        world.fake.release.add_permits(1);
        assert_eq!(client.receive().await.stream, 1);
        assert!(client.receive_or_end().await.is_none());
        stop.await.expect("stopped");
    });
}
