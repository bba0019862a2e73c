//! The HTTP servers over real sockets: limits on heads, connections and slow readers; stops.

use super::*;
use axum::routing::{get, post};
use rt::net::{AsyncReadExt, AsyncWriteExt};
use rt::sync::oneshot;
use rt::time::now;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const LOOPBACK: std::net::IpAddr = std::net::IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A port whose `/large` returns more than sockets buffer, and whose `/slow` never answers. A POST
/// of `/count` is counted.
struct World {
    address: SocketAddr,
    counted: Arc<AtomicUsize>,
    stop: oneshot::Sender<()>,
    served: Task<()>,
}

impl World {
    async fn new() -> World {
        let port = Port::open(SocketAddr::new(LOOPBACK, 0)).await.expect("opens");
        let address = port.address().expect("bound");
        let counted = Arc::new(AtomicUsize::new(0));
        let counter = counted.clone();
        let count = move || async move { (counter.fetch_add(1, Ordering::Relaxed) + 1).to_string() };
        let router = Router::new()
            .route("/count", post(count))
            .route("/", get(|| async { "fine" }))
            .route("/large", get(|| async { "x".repeat(64 << 20) }))
            .route("/slow", get(std::future::pending::<()>));
        let (stop, stopped) = oneshot::channel::<()>();
        let callers = Callers::of_administration(LOOPBACK, &[]);
        let served = rt::task::spawn(port.serve(router, callers, async move {
            let _ = stopped.await;
        }));
        World { address, counted, stop, served }
    }

    async fn send(&self, bytes: &str) -> TcpStream {
        let mut stream = rt::net::connect(self.address).await.expect("connects");
        stream.write_all(bytes.as_bytes()).await.expect("sent");
        stream
    }

    async fn ask(&self, path: &str) -> String {
        let mut stream =
            self.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")).await;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        answer
    }

    async fn stop(self) -> Duration {
        let began = now();
        let _ = self.stop.send(());
        self.served.await.expect("ended");
        began.elapsed()
    }
}

#[test]
fn a_stop_does_not_wait_for_half_requests_nor_for_idle_connections() {
    rt::block_on(async {
        let world = World::new().await;
        let _silent = world.send("").await;
        let _half = world.send("GET / HT").await;
        let mut idle = world.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        let mut answer = [0; 256];
        assert!(idle.read(&mut answer).await.expect("answered") > 0);
        assert!(world.ask("/").await.ends_with("fine"));
        assert!(world.stop().await < STOP_REQUESTS, "nothing had to be cut");
    });
}

#[test]
fn a_stop_cuts_a_client_that_does_not_read_and_a_request_that_does_not_end() {
    rt::block_on(async {
        let world = World::new().await;
        let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let mut large = world.send(&request("/large")).await;
        let mut answer = [0; 64];
        assert!(large.read(&mut answer).await.expect("answered") > 0);
        let _slow = world.send(&request("/slow")).await;
        assert!(world.ask("/").await.ends_with("fine"));
        let address = world.address;
        let took = world.stop().await;
        assert!(took >= STOP_REQUESTS && took < STOP_REQUESTS * 4, "{took:?}");
        assert!(rt::net::connect(address).await.is_err(), "the port is closed");
    });
}

#[test]
fn half_requests_beyond_the_limit_give_way_to_new_ones() {
    rt::block_on(async {
        let world = World::new().await;
        let mut half = Vec::new();
        for _ in 0..MOST_CONNECTIONS + 10 {
            half.push(world.send("GET / HTTP/1.1\r\nHost: loc").await);
        }
        assert!(world.ask("/").await.ends_with("fine"));
        let mut rest = Vec::new();
        assert!(matches!(half[0].read_to_end(&mut rest).await, Ok(0) | Err(_)), "the oldest was cut");
        world.stop().await;
    });
}

#[test]
fn requests_of_foreign_pages_are_forbidden_and_heads_are_bounded() {
    rt::block_on(async {
        let world = World::new().await;
        let mut answers = Vec::new();
        let long =
            format!("GET /{} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "x".repeat(MOST_HEAD_BYTES));
        for request in [
            "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\nConnection: close\r\n\r\n",
            "GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            long.as_str(),
        ] {
            let mut stream = world.send(request).await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            answers.push(String::from_utf8_lossy(&answer).chars().skip(9).take(3).collect::<String>());
        }
        assert_eq!(answers[..3], ["403", "403", "403"]);
        assert!(["431", "414", "400", ""].contains(&answers[3].as_str()), "{answers:?}");
        world.stop().await;
    });
}

#[test]
fn a_request_is_carried_out_only_after_its_body_has_arrived() {
    rt::block_on(async {
        let world = World::new().await;
        let head = |bytes: usize| {
            format!("POST /count HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {bytes}\r\n\r\n")
        };
        let cut = world.send(&(head(5) + "ab")).await;
        let mut late = world.send(&(head(5) + "ab")).await;
        assert!(world.ask("/").await.ends_with("fine"));
        drop(cut);
        assert_eq!(world.counted.load(Ordering::Relaxed), 0);
        late.write_all(b"cde").await.expect("sent");
        let mut answer = String::new();
        late.read_to_string(&mut answer).await.expect("answered");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with('1'), "{answer}");
        let mut long = world.send(&head(MOST_BODY_BYTES + 1)).await;
        let sent = long.write_all(&vec![b'x'; MOST_BODY_BYTES + 1]).await;
        let mut answer = Vec::new();
        let _ = long.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 413") || sent.is_err(), "{answer}");
        let chunked = "POST /count HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n";
        let mut broken = world.send(chunked).await;
        let mut answer = Vec::new();
        let _ = broken.read_to_end(&mut answer).await;
        assert!(String::from_utf8_lossy(&answer).starts_with("HTTP/1.1 400"), "{answer:?}");
        assert_eq!(world.counted.load(Ordering::Relaxed), 1);
        world.stop().await;
    });
}
