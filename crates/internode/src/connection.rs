//! The loop of one connection, the same for both ends: reads frames, passes them to the end's
//! [`Role`], and writes all queued bytes together.
//!
//! The loop stops reading while its role has enough work, so that TCP's flow control slows down a
//! sender that sends too much. Frames to send are added to the [`Connection`], which wakes the
//! loop.

use super::frame::{BadFrame, Frame, Frames, Head};
use super::metrics::Counters;
use super::outbox::Outbox;
use rt::Pieces;
use rt::net::{AsyncRead, AsyncReadExt, AsyncWrite, StreamBacklog, UnreadInput};
use rt::time::Instant;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The number of frames between two checks of the clock.
const FRAMES_PER_CLOCK: u32 = 16;

/// Why a loop ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The other node closed the connection.
    Closed,
    /// The socket failed.
    Failed(Arc<str>),
    /// An invalid frame arrived.
    Bad(BadFrame),
    /// This node closed the connection, with a reason.
    Ended(Arc<str>),
}

impl End {
    /// The reason as text, for callers that wait for a response.
    pub fn why(&self) -> Arc<str> {
        match self {
            End::Closed => "the other node closed the connection".into(),
            End::Failed(why) | End::Ended(why) => why.clone(),
            End::Bad(bad) => bad.to_string().into(),
        }
    }
}

/// The state that the loop of a connection shares with its users.
pub(super) struct Connection {
    version: u8,
    compress: bool,
    outbox: RefCell<Outbox>,
    waker: RefCell<Option<Waker>>,
    /// The loop is running, and will process the additions.
    driving: Cell<bool>,
    /// The loop must end, with a reason: at once if true, else once everything is written.
    ending: RefCell<Option<(Arc<str>, bool)>>,
    /// When bytes last arrived.
    last_received: Cell<Instant>,
    pub counters: Rc<Counters>,
}

impl Connection {
    pub fn new(version: u8, compress: bool, counters: Rc<Counters>) -> Rc<Connection> {
        Rc::new(Connection {
            version,
            compress,
            outbox: RefCell::default(),
            waker: RefCell::default(),
            driving: Cell::new(false),
            ending: RefCell::default(),
            last_received: Cell::new(rt::time::coarse_now()),
            counters,
        })
    }

    /// Adds a frame and wakes the loop. Returns the frame's length in bytes, as transmitted.
    pub fn push(&self, head: Head, body: Pieces) -> usize {
        let before = self.unwritten();
        let added = self.outbox.borrow_mut().push(self.version, head, body, self.compress);
        debug_assert_eq!(self.unwritten(), before + added, "each byte of a frame is counted once");
        self.wake();
        added
    }

    /// Bytes that wait to be written.
    pub fn unwritten(&self) -> usize {
        self.outbox.borrow().len()
    }

    /// When bytes last arrived.
    pub fn last_received(&self) -> Instant {
        self.last_received.get()
    }

    /// Ends the loop: at once, or once everything is written.
    pub fn end(&self, why: &str, at_once: bool) {
        let mut ending = self.ending.borrow_mut();
        match &mut *ending {
            Some((_, before)) => *before |= at_once,
            None => *ending = Some((why.into(), at_once)),
        }
        drop(ending);
        self.wake();
    }

    /// Wakes the loop.
    pub fn wake(&self) {
        if self.driving.get() {
            return;
        }
        let waker = self.waker.borrow().clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A timer of a role.
#[derive(Default)]
pub(super) struct Timer(Option<Set>);

struct Set {
    at: Instant,
    fires: Pin<Box<dyn Future<Output = ()>>>,
}

impl Timer {
    /// Whether the timer has fired; otherwise it wakes the loop when it fires. The timer is set to
    /// `wanted`, unless it fires earlier anyway.
    pub fn fired(&mut self, wanted: Instant, cx: &mut Context<'_>) -> bool {
        if self.0.as_ref().is_none_or(|set| set.at > wanted) {
            self.0 = Some(Set { at: wanted, fires: Box::pin(rt::time::sleep_until(wanted)) });
        }
        let fired = self.0.as_mut().is_some_and(|set| set.fires.as_mut().poll(cx).is_ready());
        if fired {
            self.0 = None;
        }
        fired
    }
}

/// The handling of frames by one end of a connection.
pub(super) trait Role {
    /// Handles a frame. An error ends the connection.
    fn frame(&mut self, frame: Frame) -> Result<(), BadFrame>;
    /// Whether frames are accepted. When this becomes true, the role must wake the loop.
    fn may_take(&self) -> bool;
    /// Called after `n` bytes were written. Must not add a frame.
    fn written(&mut self, n: usize);
    /// Handles timers. Called in each turn of the loop.
    fn turn(&mut self, cx: &mut Context<'_>);
}

/// Runs a connection until it ends.
pub(super) async fn drive<T, R>(stream: &mut T, mut frames: Frames, connection: &Connection, role: &mut R) -> End
where
    T: AsyncRead + AsyncWrite + UnreadInput + Unpin,
    R: Role,
{
    let mut unflushed = false;
    let backlog = StreamBacklog::default();
    poll_fn(|cx| {
        if !connection.waker.borrow().as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            connection.waker.replace(Some(cx.waker().clone()));
        }
        debug_assert!(!connection.driving.get(), "a connection has one loop");
        connection.driving.set(true);
        let out = turn(stream, &mut frames, connection, role, &backlog, &mut unflushed, cx);
        connection.driving.set(false);
        match out {
            Ok(poll) => poll,
            Err(error) => Poll::Ready(End::Failed(error.to_string().into())),
        }
    })
    .await
}

fn turn<T, R>(
    stream: &mut T,
    frames: &mut Frames,
    connection: &Connection,
    role: &mut R,
    backlog: &StreamBacklog,
    unflushed: &mut bool,
    cx: &mut Context<'_>,
) -> io::Result<Poll<End>>
where
    T: AsyncRead + AsyncWrite + UnreadInput + Unpin,
    R: Role,
{
    loop {
        let mut taken = 0u32;
        let mut yields = false;
        while role.may_take() {
            match frames.next_frame() {
                Ok(Some(frame)) => {
                    if let Err(bad) = role.frame(frame) {
                        return Ok(Poll::Ready(End::Bad(bad)));
                    }
                }
                Ok(None) => break,
                Err(bad) => return Ok(Poll::Ready(End::Bad(bad))),
            }
            taken += 1;
            if taken.is_multiple_of(FRAMES_PER_CLOCK) && rt::task::is_time_to_yield() {
                yields = true;
                break;
            }
        }
        role.turn(cx);
        let blocked = !role.may_take();
        if let Some((why, true)) = &*connection.ending.borrow() {
            return Ok(Poll::Ready(End::Ended(why.clone())));
        }
        let flushed = flush(stream, connection, role, unflushed, cx)?;
        if let Some((why, _)) = &*connection.ending.borrow()
            && flushed
        {
            return Ok(Poll::Ready(End::Ended(why.clone())));
        }
        if yields {
            backlog.some_left(frames.buffered(), stream);
            cx.waker().wake_by_ref();
            return Ok(Poll::Pending);
        }
        if blocked {
            // The flush may have written what blocked the role.
            if role.may_take() {
                continue;
            }
            backlog.none_left();
            return Ok(Poll::Pending);
        }
        let read = {
            let space = frames.space();
            pin!(stream.read_buf(space)).poll(cx)?
        };
        match read {
            // The stream may have input, but this shard should run other tasks first.
            Poll::Pending if !rt::task::may_poll_io() => {
                backlog.some_left(frames.buffered(), stream);
                return Ok(Poll::Pending);
            }
            Poll::Pending => {
                backlog.none_left();
                return Ok(Poll::Pending);
            }
            Poll::Ready(0) => return Ok(Poll::Ready(End::Closed)),
            Poll::Ready(n) => {
                backlog.received(n);
                connection.last_received.set(rt::time::coarse_now());
                connection.counters.received.set(connection.counters.received.get() + n as u64);
            }
        }
    }
}

/// Writes queued bytes. Returns true when nothing is left.
fn flush<T, R>(
    stream: &mut T,
    connection: &Connection,
    role: &mut R,
    unflushed: &mut bool,
    cx: &mut Context<'_>,
) -> io::Result<bool>
where
    T: AsyncWrite + Unpin,
    R: Role,
{
    connection.outbox.borrow_mut().flush(stream, unflushed, cx, |written| {
        connection.counters.sent.set(connection.counters.sent.get() + written as u64);
        role.written(written);
    })
}
