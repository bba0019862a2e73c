//! Nodes of several shards on real sockets, in one process. They test which connections are
//! accepted, which are rejected and with which text, and encryption.

use bytes::Bytes;
use internode::{
    AddressBook, Between, CallError, Caller, Identity, Internode, InternodeConfig, InternodeListener, InternodeMetrics,
    LivenessConfig, Peer, PeerAddress, Refusal, RejectionCode, Running, Verb,
};
use model::HostId;
use rt::Pieces;
use rt::net::{AsyncReadExt, AsyncWriteExt};
use rt::shard::{PerShard, ShardId};
use rt::sync::Deadline;
use rt::time::{Duration, timeout};
use rt::tls::{PeerFiles, PeerTls};
use rt::{Machine, MachineConfig, MachineHandle};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::LazyLock;
use uuid::Uuid;

const SOON: Duration = Duration::from_secs(60);

fn host(n: u128) -> HostId {
    HostId(Uuid::from_u128(n))
}

struct Node {
    machine: MachineHandle,
    host: HostId,
    shards: u16,
    address: SocketAddr,
}

/// The internode of every shard of every node.
static SHARDS: LazyLock<PerShard<Internode>> = LazyLock::new(PerShard::new);
/// The running internode of a node, kept on shard 0.
static RUNNING: LazyLock<PerShard<Kept>> = LazyLock::new(PerShard::new);

struct Kept(RefCell<Option<Running>>);

async fn echo(caller: Caller, body: Bytes) -> Result<Pieces, Refusal> {
    let shard = rt::shard::this().0;
    let mut answer = format!("shard {shard} to {} of {}: ", caller.shard, caller.host.0.as_u128()).into_bytes();
    answer.extend_from_slice(&body);
    Ok(Bytes::from(answer).into())
}

async fn start(n: u128, shards: u16, cluster: &str, config: InternodeConfig, tls: Option<PeerTls>) -> Node {
    let machine_config = MachineConfig { shards: shards.into(), overprovisioned: true, ..MachineConfig::default() };
    let machine =
        Machine::start(machine_config, |_| async { rt::shard::stopping().cancelled().await }).expect("started");
    let cluster = cluster.to_owned();
    let up = machine.remote().call(ShardId(0), move || async move {
        let listener = InternodeListener::open(([127, 0, 0, 1], 0).into()).await.expect("a port");
        let address = listener.local_addr().expect("known");
        let own = Identity {
            host: host(n),
            cluster,
            address,
            datacenter: "dc1".into(),
            rack: "r1".into(),
            features: Vec::new(),
        };
        internode::install(*SHARDS, own, config, None, tls).await;
        SHARDS.call_all(|internode| async move { internode.serve(Verb::Replica, echo) }).await;
        RUNNING.set(Rc::new(Kept(RefCell::new(Some(internode::serve(SHARDS.get(), listener))))));
        address
    });
    Node { machine, host: host(n), shards, address: up.await.expect("up") }
}

impl Node {
    fn peer(&self) -> PeerAddress {
        PeerAddress { address: self.address, shards: self.shards, datacenter: "dc1".into(), rack: "r1".into() }
    }

    async fn knows(&self, peers: &[(HostId, PeerAddress)]) {
        let book = AddressBook { peers: peers.iter().cloned().collect(), ..AddressBook::default() };
        self.machine
            .remote()
            .call(ShardId(0), move || async move { internode::publish_book(*SHARDS, book).await })
            .await
            .expect("published");
    }

    async fn call(&self, from: u16, to: Peer, body: Bytes) -> Result<Bytes, CallError> {
        let call = self.machine.remote().call(ShardId(from), move || async move {
            SHARDS.get().call(to, Verb::Replica, body, Deadline::after(SOON)).await
        });
        call.await.expect("ran")
    }

    async fn call_at(&self, address: SocketAddr) -> Result<HostId, CallError> {
        let call = self.machine.remote().call(ShardId(0), move || async move {
            let internode = SHARDS.get();
            let answer = internode.call_at(address, Verb::Replica, Bytes::new(), Deadline::after(SOON)).await;
            answer.map(|(party, _)| party.host)
        });
        call.await.expect("ran")
    }

    async fn metrics(&self) -> InternodeMetrics {
        let ask = || async { SHARDS.get().metrics() };
        self.machine.remote().call(ShardId(0), ask).await.expect("ran")
    }

    async fn stop(self) {
        let stopped = self.machine.remote().call(ShardId(0), || async {
            let running = RUNNING.get().0.borrow_mut().take();
            if let Some(running) = running {
                running.stop().await;
            }
        });
        timeout(SOON, stopped).await.expect("in time").expect("stopped");
        self.machine.stop();
        self.machine.join();
    }
}

fn code(answer: Result<HostId, CallError>) -> (RejectionCode, String) {
    match answer {
        Err(CallError::Rejected(rejection)) => (rejection.code, rejection.text.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_shard_reaches_every_shard_of_a_node_with_another_number_of_them() {
    rt::block_on(async {
        let config = InternodeConfig { compression: Between::All, ..InternodeConfig::default() };
        let (a, b) = (start(1, 2, "C", config, None).await, start(2, 3, "C", InternodeConfig::default(), None).await);
        a.knows(&[(b.host, b.peer())]).await;
        b.knows(&[(a.host, a.peer())]).await;
        for from in 0..2 {
            for shard in [0, 1, 2, 3, 7] {
                let answer = a.call(from, Peer { host: b.host, shard }, Bytes::from_static(b"hello")).await;
                assert_eq!(answer, Ok(format!("shard {} to {from} of 1: hello", shard % 3).into()));
            }
        }
        let answer = b.call(2, Peer { host: a.host, shard: 1 }, Bytes::from_static(b"back")).await;
        assert_eq!(answer, Ok("shard 1 to 2 of 2: back".into()));
        let large = Bytes::from(vec![b'x'; 3 << 20]);
        let answer = a.call(0, Peer { host: b.host, shard: 2 }, large.clone()).await.expect("answered");
        assert!(answer.ends_with(&large) && answer.len() > large.len());
        assert!(a.metrics().await.sent < 1 << 20, "the sent bytes were compressed");
        assert_eq!(a.call(0, Peer { host: host(9), shard: 0 }, Bytes::new()).await, Err(CallError::NoAddress(host(9))));
        // The node has no address any more.
        a.knows(&[]).await;
        assert_eq!(a.call(0, Peer { host: b.host, shard: 0 }, Bytes::new()).await, Err(CallError::NoAddress(b.host)));
        a.stop().await;
        b.stop().await;
    });
}

#[test]
fn foreign_nodes_are_rejected_with_a_reason() {
    rt::block_on(async {
        let config = InternodeConfig::default();
        let a = start(1, 2, "One", config, None).await;
        let b = start(2, 1, "One", config, None).await;
        let foreign = start(3, 1, "Another", config, None).await;
        assert_eq!(a.call_at(b.address).await, Ok(b.host));
        let (why, text) = code(a.call_at(foreign.address).await);
        assert_eq!(why, RejectionCode::Cluster);
        assert!(text.contains("'One'") && text.contains("'Another'"), "{text}");
        assert_eq!(code(foreign.call_at(a.address).await).0, RejectionCode::Cluster);
        assert_eq!(code(a.call_at(a.address).await).0, RejectionCode::Itself);
        // Another node is at the address in the book.
        a.knows(&[(host(7), b.peer())]).await;
        match a.call(1, Peer { host: host(7), shard: 0 }, Bytes::new()).await {
            Err(CallError::Rejected(rejection)) => assert_eq!(rejection.code, RejectionCode::Host),
            other => panic!("{other:?}"),
        }
        // A node that has left, and is connected already.
        assert_eq!(b.call_at(a.address).await, Ok(a.host));
        let book = AddressBook { left: [b.host].into(), ..AddressBook::default() };
        let tell = move || async move { internode::publish_book(*SHARDS, book).await };
        a.machine.remote().call(ShardId(0), tell).await.expect("published");
        let rejected = loop {
            match b.call_at(a.address).await {
                // Its connection is closed.
                Err(CallError::Lost { .. }) => {}
                answer => break answer,
            }
        };
        assert_eq!(code(rejected).0, RejectionCode::Left);
        // No listener, and a listener that is not a node.
        let other = rt::net::listen(([127, 0, 0, 1], 0).into(), Default::default()).await.expect("a port");
        let address = other.local_addr().expect("known");
        let serving = rt::task::spawn(async move {
            let (mut stream, _) = other.accept().await.expect("a node connects");
            let mut bytes = [0; 8];
            stream.read_exact(&mut bytes).await.expect("read");
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.expect("written");
        });
        assert_eq!(code(a.call_at(address).await).0, RejectionCode::Garbage);
        serving.await.expect("ran");
        assert!(matches!(a.call_at(address).await, Err(CallError::Unreachable(_) | CallError::Rejected(_))));
        for node in [a, b, foreign] {
            node.stop().await;
        }
    });
}

#[test]
fn garbage_on_the_port_is_closed_and_the_port_goes_on() {
    rt::block_on(async {
        let config = InternodeConfig::default();
        let (a, b) = (start(1, 1, "C", config, None).await, start(2, 1, "C", config, None).await);
        let preamble = internode::handshake::Preamble { encrypted: false, shard: 9 }.encode();
        let mut mangled = preamble.to_vec();
        mangled.extend_from_slice(&[0xff; 600]);
        let hello: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
        for garbage in [b"GET / HTTP/1.1\r\n\r\n", hello, &[0; 100], &mangled[..]] {
            let mut stream = rt::net::connect(a.address).await.expect("connected");
            stream.write_all(garbage).await.expect("written");
            let mut said = Vec::new();
            let end = timeout(SOON, stream.read_to_end(&mut said)).await.expect("closed in time");
            // Closing with unread input may cause a reset.
            assert!(end.is_err() || said.len() <= 8, "{said:?}");
        }
        assert_eq!(a.metrics().await.garbage, 4);
        assert_eq!(b.call_at(a.address).await, Ok(a.host));
        a.stop().await;
        b.stop().await;
    });
}

/// A stalled node: its connections stay open and silent. A caller that waits for a connection gets
/// an error as soon as the node is known to be down, not at its deadline.
#[test]
fn a_call_that_waits_for_a_connection_fails_when_the_node_is_down() {
    rt::block_on(async {
        #[allow(clippy::disallowed_methods, reason = "a listener that accepts nothing")]
        let still = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let ms = Duration::from_millis;
        let liveness = LivenessConfig { timeout: ms(100), down_after: ms(500), ..LivenessConfig::default() };
        let config = InternodeConfig { handshake_timeout: SOON, liveness, ..InternodeConfig::default() };
        let a = start(1, 1, "C", config, None).await;
        let address = still.local_addr().expect("known");
        let peer = PeerAddress { address, shards: 1, datacenter: "dc1".into(), rack: "r1".into() };
        a.knows(&[(host(2), peer)]).await;
        let answer = a.call(0, Peer { host: host(2), shard: 0 }, Bytes::new()).await;
        assert_eq!(answer, Err(CallError::Down(host(2))));
        a.stop().await;
    });
}

fn certificates(node: &str, require_client_auth: bool) -> PeerTls {
    let file = |name: String| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/certificates").join(name);
    let files = PeerFiles {
        certificate: file(format!("{node}.crt")),
        keyfile: file(format!("{node}.key")),
        truststore: file("one-ca.crt".into()),
        require_client_auth,
    };
    files.load().expect("the files are fine")
}

#[test]
fn encrypted_nodes_reach_only_each_other() {
    rt::block_on(async {
        let config = InternodeConfig { encryption: Between::All, ..InternodeConfig::default() };
        let a = start(1, 2, "C", config, Some(certificates("a", true))).await;
        let b = start(2, 1, "C", config, Some(certificates("b", true))).await;
        let plain = start(3, 1, "C", InternodeConfig::default(), None).await;
        let stranger = start(4, 1, "C", config, Some(certificates("stranger", true))).await;
        a.knows(&[(b.host, b.peer())]).await;
        let body = Bytes::from(vec![5; 1 << 20]);
        for from in 0..2 {
            let answer = a.call(from, Peer { host: b.host, shard: 0 }, body.clone()).await.expect("answered");
            assert!(answer.ends_with(&body));
        }
        assert_eq!(b.call_at(a.address).await, Ok(a.host));
        assert_eq!(code(plain.call_at(a.address).await).0, RejectionCode::NeedsTls);
        assert_eq!(code(a.call_at(plain.address).await).0, RejectionCode::NoTls);
        let (why, text) = code(a.call_at(stranger.address).await);
        assert_eq!(why, RejectionCode::Tls);
        assert!(text.contains("certificate"), "{text}");
        // In the other direction the accepting node detects the mismatch; the connecting node gets
        // a TLS alert.
        match stranger.call_at(a.address).await {
            Err(CallError::Unreachable(why)) => assert!(why.contains("failed"), "{why}"),
            Err(CallError::Rejected(rejection)) => assert_eq!(rejection.code, RejectionCode::Tls),
            other => panic!("{other:?}"),
        }
        // Certificates can be changed: the node with the foreign certificate gets one of the
        // cluster's, for new connections.
        let tls = certificates("b", true);
        let change = move || async move { SHARDS.get().set_tls(Some(tls)) };
        stranger.machine.remote().call(ShardId(0), change).await.expect("ran");
        let mut reached = stranger.call_at(a.address).await;
        while let Err(CallError::Rejected(_) | CallError::Unreachable(_)) = reached {
            // The pause after the previous failure.
            rt::time::sleep(Duration::from_millis(20)).await;
            reached = stranger.call_at(a.address).await;
        }
        assert_eq!(reached, Ok(a.host));
        for node in [a, b, plain, stranger] {
            node.stop().await;
        }
    });
}
