//! The HTTP servers for administration and metrics.
//!
//! They run on the process's first thread, never on a shard's, and call the shards through their
//! mailboxes. So they take no time from requests except for these calls.
//!
//! The resources of a client are limited: the connections of a port, the bytes of a request, and
//! the time for sending it. No path reads a body, but a request is carried out only after its body
//! has arrived. A client that makes no progress in reading an answer is disconnected
//! ([`slow_reader`]). [`caller`] refuses requests that web pages of other sites make.

pub mod caller;
mod slow_reader;
pub mod starting;

use crate::connection::accept::listen_error;
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::{Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use caller::Callers;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rt::net::{AcceptErrors, SpareDescriptors, TcpListener, TcpStream};
use rt::sync::{Cancel, Gate, GateGuard};
use rt::task::Task;
use rt::time::{Duration, Instant};
use slow_reader::SlowReader;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;

/// The most connections of a port. Beyond that, a new connection replaces the oldest one without a
/// running request.
const MOST_CONNECTIONS: usize = 128;
/// The descriptors of a port in reserve: its connections when the process has no others left.
const SPARE_DESCRIPTORS: usize = 4;
/// Without descriptors, a connection is closed if it has had no running request for this long.
const IDLE: Duration = Duration::from_secs(1);
/// The timeout for the head of a request, and for its body.
const RECEIVE_TIME: Duration = Duration::from_secs(10);
/// The most bytes of a request's body.
const MOST_BODY_BYTES: usize = 64 << 10;
/// The most bytes of a request's head.
const MOST_HEAD_BYTES: usize = 16 << 10;
/// How long running requests may take when the node stops. Then their connections are closed.
pub const STOP_REQUESTS: Duration = Duration::from_secs(5);

/// An open port.
pub struct Port {
    listener: TcpListener,
    /// Taken before clients can connect.
    spare: Rc<RefCell<SpareDescriptors>>,
}

/// Whether a request of a connection is running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// No request has arrived yet.
    Silent,
    /// A request is running.
    Working,
    /// A request was answered. The client may still be reading the answer.
    Answered,
}

/// The stage of a connection, and since when.
struct Progress {
    stage: Cell<Stage>,
    since: Cell<Instant>,
}

impl Progress {
    fn new() -> Progress {
        Progress { stage: Cell::new(Stage::Silent), since: Cell::new(rt::time::now()) }
    }

    fn reach(&self, stage: Stage) {
        self.stage.set(stage);
        self.since.set(rt::time::now());
    }

    /// Whether the connection has had no running request for `time`.
    fn is_idle_for(&self, time: Duration) -> bool {
        self.stage.get() != Stage::Working && rt::time::now().saturating_duration_since(self.since.get()) >= time
    }
}

/// A connection in the list of its port.
struct Open {
    progress: Rc<Progress>,
    task: Task<()>,
}

/// The connections of a port.
struct Connections {
    open: RefCell<BTreeMap<u64, Open>>,
    spare: Rc<RefCell<SpareDescriptors>>,
    next_id: Cell<u64>,
    stop: Cancel,
    gate: Gate,
}

impl Port {
    /// Opens the port. An error names the address.
    pub async fn open(address: SocketAddr) -> io::Result<Port> {
        let listener = rt::net::listen(address, rt::net::ListenOptions::default())
            .await
            .map_err(|error| listen_error(address, &error))?;
        let spare = Rc::new(RefCell::new(SpareDescriptors::new(SPARE_DESCRIPTORS)));
        Ok(Port { listener, spare })
    }

    /// The address of the port.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is ready. Then closes the port, and gives running requests
    /// [`STOP_REQUESTS`] to finish.
    pub async fn serve(self, router: Router, callers: Callers, stop: impl Future<Output = ()>) {
        let connections = Rc::new(Connections::new(self.spare.clone()));
        self.accept(&connections, router, callers, stop).await;
        drop(self.listener);
        connections.stop().await;
    }

    /// Serves until the future is dropped. Then closes the connections, and not the port.
    async fn serve_until_dropped(&self, router: Router, callers: Callers) {
        let connections = Rc::new(Connections::new(self.spare.clone()));
        let _end = Abort(connections.clone());
        self.accept(&connections, router, callers, std::future::pending()).await;
    }

    async fn accept(
        &self,
        connections: &Rc<Connections>,
        router: Router,
        callers: Callers,
        stop: impl Future<Output = ()>,
    ) {
        let callers = Rc::new(callers);
        let mut errors = AcceptErrors::new("an HTTP client");
        let mut stop = pin!(stop);
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = &mut stop => break,
            };
            match accepted {
                Ok((stream, peer)) => {
                    errors.accepted();
                    connections.spare.borrow_mut().fill();
                    connections.serve(stream, peer, router.clone(), callers.clone());
                }
                Err(error) if connections.spare.borrow_mut().release_after(&error) => {}
                Err(error) => {
                    // All spare descriptors are in use.
                    connections.close_idle_for(IDLE);
                    errors.failed(&error).await;
                }
            }
        }
    }
}

/// Aborts all connections when it is dropped.
struct Abort(Rc<Connections>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort(|_| true);
    }
}

impl Connections {
    fn new(spare: Rc<RefCell<SpareDescriptors>>) -> Connections {
        Connections {
            open: RefCell::default(),
            spare,
            next_id: Cell::default(),
            stop: Cancel::default(),
            gate: Gate::default(),
        }
    }

    /// Serves a connection in its own task.
    fn serve(self: &Rc<Self>, stream: TcpStream, peer: SocketAddr, router: Router, callers: Rc<Callers>) {
        let Some(inside) = self.gate.enter() else { return };
        if !self.make_room() {
            return tracing::debug!(%peer, "refused an HTTP connection: there are too many");
        }
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        let progress = Rc::new(Progress::new());
        let work = speak(stream, router, callers, progress.clone(), self.stop.clone());
        let leave = Leave { connections: self.clone(), id, _inside: inside };
        let task = rt::task::spawn(async move {
            let _leave = leave;
            if let Err(error) = work.await {
                tracing::debug!(%peer, %error, "an HTTP connection failed");
            }
        });
        self.open.borrow_mut().insert(id, Open { progress, task });
    }

    /// Whether one more connection may be served. If necessary, closes an older one.
    fn make_room(&self) -> bool {
        self.open.borrow().len() < MOST_CONNECTIONS || self.close_idle_for(Duration::ZERO)
    }

    /// Closes the oldest connection that has had no running request for `time`. Returns whether
    /// there was one.
    fn close_idle_for(&self, time: Duration) -> bool {
        let mut open = self.open.borrow_mut();
        let idle = open.iter().find(|(_, connection)| connection.progress.is_idle_for(time)).map(|(id, _)| *id);
        let cut = idle.and_then(|id| open.remove(&id));
        drop(open);
        if let Some(connection) = &cut {
            connection.task.abort();
        }
        cut.is_some()
    }

    /// Ends all connections: those without a request at once, others after the answer.
    async fn stop(&self) {
        self.stop.cancel();
        self.abort(|stage| stage == Stage::Silent);
        if rt::time::timeout(STOP_REQUESTS, self.gate.close()).await.is_err() {
            let connections = self.gate.inside();
            tracing::warn!(connections, limit = ?STOP_REQUESTS, "HTTP requests did not end in time: closing their connections");
            self.abort(|_| true);
        }
    }

    fn abort(&self, which: impl Fn(Stage) -> bool) {
        let mut open = self.open.borrow_mut();
        let cut: Vec<u64> = open.iter().filter(|(_, one)| which(one.progress.stage.get())).map(|(id, _)| *id).collect();
        let cut: Vec<Open> = cut.into_iter().filter_map(|id| open.remove(&id)).collect();
        drop(open);
        cut.iter().for_each(|connection| connection.task.abort());
    }
}

/// Removes a connection from its port's list when it ends.
struct Leave {
    connections: Rc<Connections>,
    id: u64,
    _inside: GateGuard,
}

impl Drop for Leave {
    fn drop(&mut self) {
        // The map is not borrowed while a task is dropped: `abort` only marks it.
        let gone = self.connections.open.borrow_mut().remove(&self.id);
        drop(gone);
        // Before another part of the process takes the descriptor of the connection.
        self.connections.spare.borrow_mut().fill();
    }
}

/// Serves HTTP on one connection until it ends.
async fn speak(
    stream: TcpStream,
    router: Router,
    callers: Rc<Callers>,
    progress: Rc<Progress>,
    stop: Cancel,
) -> Result<(), hyper::Error> {
    let local = stream.local_addr().ok().map(|address| address.ip());
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        let allowed = callers.check(&request, local);
        let (router, progress) = (router.clone(), progress.clone());
        async move {
            let answer = match allowed {
                Ok(()) => match received(request).await {
                    Ok(request) => {
                        progress.reach(Stage::Working);
                        router.call(request).await
                    }
                    Err(refusal) => Ok(refusal),
                },
                Err(why) => Ok(refused(StatusCode::FORBIDDEN, why)),
            };
            progress.reach(Stage::Answered);
            answer as Result<Response<Body>, Infallible>
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(RECEIVE_TIME)
        .max_buf_size(MOST_HEAD_BYTES)
        .serve_connection(TokioIo::new(SlowReader::new(stream)), service);
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = stop.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}

/// The request after its body has arrived. Otherwise the answer that refuses it.
async fn received(request: Request<Incoming>) -> Result<Request<Body>, Response> {
    let (head, body) = request.into_parts();
    if body.is_end_stream() {
        return Ok(Request::from_parts(head, Body::empty()));
    }
    match rt::time::timeout(RECEIVE_TIME, Limited::new(body, MOST_BODY_BYTES).collect()).await {
        Ok(Ok(body)) => Ok(Request::from_parts(head, Body::from(body.to_bytes()))),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let why = format!("The body of the request must have at most {MOST_BODY_BYTES} bytes");
            Err(refused(StatusCode::PAYLOAD_TOO_LARGE, why))
        }
        Ok(Err(error)) => {
            Err(refused(StatusCode::BAD_REQUEST, format!("The body of the request could not be read: {error}")))
        }
        Err(_) => {
            let why = format!("The body of the request has not arrived within {RECEIVE_TIME:?}");
            Err(refused(StatusCode::REQUEST_TIMEOUT, why))
        }
    }
}

/// The answer to a request that is not carried out. Closes the connection, since a body may follow.
fn refused(code: StatusCode, why: String) -> Response {
    let message = axum::Json(serde_json::json!({ "message": why, "code": code.as_u16() }));
    (code, [(header::CONNECTION, "close")], message).into_response()
}

#[cfg(test)]
mod tests;
