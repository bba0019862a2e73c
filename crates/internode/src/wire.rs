//! One connection's loop, the same for both ends: read, hand each frame to the end's [`Role`], write all that came together at once.
//!
//! The loop stops reading while its role has enough to do, so that whoever sends too much is held back by its own socket. What is to
//! be written is put into the [`Wire`], which wakes the loop.

use super::frame::{BadFrame, Frame, Frames, Head};
use super::metrics::Counters;
use super::outbox::{MAX_SLICES, Outbox};
use rt::Pieces;
use rt::net::{AsyncRead, AsyncReadExt, AsyncWrite};
use rt::time::Instant;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Frames between two looks at the clock.
const FRAMES_PER_CLOCK: u32 = 16;

/// Why a loop ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The other side closed the connection.
    Closed,
    /// The socket failed.
    Failed(Arc<str>),
    /// What came was not right.
    Bad(BadFrame),
    /// This side ended it, and why.
    Ended(Arc<str>),
}

impl End {
    /// As a reason for those who waited for something.
    pub fn why(&self) -> Arc<str> {
        match self {
            End::Closed => "the other node closed the connection".into(),
            End::Failed(why) | End::Ended(why) => why.clone(),
            End::Bad(bad) => bad.to_string().into(),
        }
    }
}

/// What the loop of a connection and all who use it share.
pub(super) struct Wire {
    version: u8,
    compress: bool,
    outbox: RefCell<Outbox>,
    waker: RefCell<Option<Waker>>,
    /// The loop runs just now and will see what is added.
    driving: Cell<bool>,
    /// The loop is to end once everything is written, or at once.
    ending: RefCell<Option<(Arc<str>, bool)>>,
    /// When bytes came last.
    heard: Cell<Instant>,
    pub counters: Rc<Counters>,
}

impl Wire {
    pub fn new(version: u8, compress: bool, counters: Rc<Counters>) -> Rc<Wire> {
        Rc::new(Wire {
            version,
            compress,
            outbox: RefCell::default(),
            waker: RefCell::default(),
            driving: Cell::new(false),
            ending: RefCell::default(),
            heard: Cell::new(rt::time::coarse_now()),
            counters,
        })
    }

    /// Adds a frame and wakes the loop. Gives its bytes on the wire.
    pub fn push(&self, head: Head, body: Pieces) -> usize {
        let added = self.outbox.borrow_mut().push(self.version, head, body, self.compress);
        self.wake();
        added
    }

    /// Bytes that wait to be written.
    pub fn unwritten(&self) -> usize {
        self.outbox.borrow().len()
    }

    /// When bytes came last.
    pub fn heard(&self) -> Instant {
        self.heard.get()
    }

    /// Ends the loop, once all is written or at once.
    pub fn end(&self, why: &str, at_once: bool) {
        let mut ending = self.ending.borrow_mut();
        match &mut *ending {
            Some((_, before)) => *before |= at_once,
            None => *ending = Some((why.into(), at_once)),
        }
        drop(ending);
        self.wake();
    }

    /// Has the loop take a turn.
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
    /// Whether it has fired; wakes the loop when it does. It is set for `wanted`, unless it fires sooner anyway.
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

/// What an end of a connection does with frames.
pub(super) trait Role {
    /// Takes a frame. An error ends the connection.
    fn frame(&mut self, frame: Frame) -> Result<(), BadFrame>;
    /// Whether frames may be taken; whoever makes it so again wakes the loop.
    fn may_take(&self) -> bool;
    /// Bytes were written.
    fn written(&mut self, n: usize);
    /// Looks after timers.
    fn turn(&mut self, cx: &mut Context<'_>);
}

/// Runs a connection to its end.
pub(super) async fn drive<T, R>(stream: &mut T, mut frames: Frames, wire: &Wire, role: &mut R) -> End
where
    T: AsyncRead + AsyncWrite + Unpin,
    R: Role,
{
    let mut unflushed = false;
    poll_fn(|cx| {
        if !wire.waker.borrow().as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            wire.waker.replace(Some(cx.waker().clone()));
        }
        wire.driving.set(true);
        let out = turn(stream, &mut frames, wire, role, &mut unflushed, cx);
        wire.driving.set(false);
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
    wire: &Wire,
    role: &mut R,
    unflushed: &mut bool,
    cx: &mut Context<'_>,
) -> io::Result<Poll<End>>
where
    T: AsyncRead + AsyncWrite + Unpin,
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
        if let Some((why, true)) = &*wire.ending.borrow() {
            return Ok(Poll::Ready(End::Ended(why.clone())));
        }
        let flushed = flush(stream, wire, role, unflushed, cx)?;
        if let Some((why, _)) = &*wire.ending.borrow()
            && flushed
        {
            return Ok(Poll::Ready(End::Ended(why.clone())));
        }
        if yields {
            cx.waker().wake_by_ref();
            return Ok(Poll::Pending);
        }
        if blocked {
            // What blocked may have been written just now.
            if role.may_take() {
                continue;
            }
            return Ok(Poll::Pending);
        }
        let read = {
            let space = frames.space();
            pin!(stream.read_buf(space)).poll(cx)?
        };
        match read {
            Poll::Pending => return Ok(Poll::Pending),
            Poll::Ready(0) => return Ok(Poll::Ready(End::Closed)),
            Poll::Ready(n) => {
                wire.heard.set(rt::time::coarse_now());
                wire.counters.received.set(wire.counters.received.get() + n as u64);
            }
        }
    }
}

/// Writes what waits. True when nothing is left.
fn flush<T, R>(
    stream: &mut T,
    wire: &Wire,
    role: &mut R,
    unflushed: &mut bool,
    cx: &mut Context<'_>,
) -> io::Result<bool>
where
    T: AsyncWrite + Unpin,
    R: Role,
{
    loop {
        let written = {
            let outbox = wire.outbox.borrow();
            if outbox.is_empty() {
                break;
            }
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let used = outbox.slices(&mut slices);
            let poll = match &slices[..used] {
                [one] => Pin::new(&mut *stream).poll_write(cx, one),
                many => Pin::new(&mut *stream).poll_write_vectored(cx, many),
            };
            match poll? {
                Poll::Pending => return Ok(false),
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(n) => n,
            }
        };
        *unflushed = true;
        wire.outbox.borrow_mut().written(written);
        wire.counters.sent.set(wire.counters.sent.get() + written as u64);
        role.written(written);
    }
    // What encrypts has a buffer of its own.
    if *unflushed {
        *unflushed = Pin::new(&mut *stream).poll_flush(cx)?.is_pending();
    }
    Ok(!*unflushed)
}
