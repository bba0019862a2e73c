//! Frames that need memory of their own before their bodies are read or decompressed. They must
//! arrive in time.

use super::super::memory::Charge;
use super::super::service::Service;
use super::super::stream::ClientStream;
use super::{COPIES, Drive};
use crate::protocol::frames::{BUFFER, FIRST_BUFFER};
use cql::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// In bytes. A frame that is longer than this, compressed or decompressed, reserves memory first.
const LARGE_FRAME: usize = BUFFER;
/// A large frame must be complete after this many steps (`Limits::large_frame_step`).
const LARGE_FRAME_STEPS: u32 = 5;
/// Bytes that must arrive before a large frame reserves memory, so that idle clients hold none.
/// Under input pressure, [`FIRST_BUFFER`] bytes must arrive instead.
const FIRST_PART: usize = BUFFER / 2;
/// The least that must arrive of a large frame in one step while others wait for memory, in bytes.
const LEAST_PER_STEP: usize = 64 << 10;

/// A large frame that is being read.
pub(super) struct LargeFrame {
    pub(super) charge: Charge,
    /// The bytes that it reserved.
    need: usize,
    /// The bytes missing at the last check.
    missing: usize,
    /// The steps so far.
    steps: u32,
    /// The connection was not read for a while, so this step does not count.
    pub(super) paused: bool,
    /// The time of the next check.
    look: Pin<Box<dyn Future<Output = ()>>>,
}

impl LargeFrame {
    /// The bytes that it reserved.
    pub(super) fn need(&self) -> usize {
        self.need
    }
}

impl<T, S> Drive<'_, T, S>
where
    T: ClientStream,
    S: Service,
{
    /// Whether the next frame may be decompressed, which may need memory first.
    pub(super) fn may_open(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(compression) = self.connection.dialect.get().compression else { return true };
        let opened = self.frames.opened_len(compression);
        opened <= LARGE_FRAME
            || self.has_just_begun()
            || self.reserve(self.frames.incomplete_len() + COPIES * opened, cx)
    }

    /// Whether a large frame has `need` bytes of memory. If not, the loop is woken later.
    fn reserve(&mut self, need: usize, cx: &mut Context<'_>) -> bool {
        if self.large.as_ref().is_some_and(|large| large.need >= need) {
            return true;
        }
        // All memory is reserved at once: two frames that each held a part would deadlock.
        self.large = None;
        let Poll::Ready(charge) = self.transport.memory.poll_reserve(&mut self.ticket, need, cx) else { return false };
        let look = Box::pin(rt::time::sleep(self.transport.limits.large_frame_step));
        self.large = Some(LargeFrame { charge, need, missing: self.frames.missing(), steps: 0, paused: false, look });
        true
    }

    /// Ends the reservation with its frame of `len` bytes. Returns the charge if it is enough for
    /// the request.
    #[inline]
    pub(super) fn take_charge(&mut self, len: usize) -> Option<Charge> {
        // A decompressed segment has its memory until its last frame is taken.
        if self.large.is_none() || self.frames.has_opened() {
            return None;
        }
        self.large.take().filter(|large| large.need >= COPIES * len).map(|large| large.charge)
    }

    /// The bytes that the next frame or segment must reserve.
    fn input_need(&self) -> usize {
        let len = self.frames.incomplete_len();
        // Segments are copied when the frame is assembled.
        let whole = if len > LARGE_FRAME || self.frames.uses_segments() { COPIES * len } else { len };
        whole.max(self.frames.opening_len())
    }

    /// Whether the next frame or segment is too long to be read without a reservation.
    fn needs_reservation(&self) -> bool {
        self.frames.incomplete_len().max(self.frames.opening_len()) > self.frames.large_from()
    }

    /// Whether so little of the next frame has arrived that it needs no memory of its own.
    fn has_just_begun(&self) -> bool {
        let first_part = if self.frames.is_pressed() { FIRST_BUFFER } else { FIRST_PART };
        self.large.is_none()
            && self.frames.missing() > 0
            && self.frames.buffered() < first_part
            && !self.frames.waits_for_memory()
    }

    /// Whether more input may be read: a large frame needs its memory, and must arrive in time.
    pub(super) fn may_read(&mut self, cx: &mut Context<'_>) -> bool {
        if self.frames.incomplete_len() == 0 {
            self.large = None;
        }
        // A frame that has reserved memory keeps its deadline after the input pressure has ended.
        if self.large.is_none() && (!self.needs_reservation() || self.has_just_begun()) {
            self.ticket = None;
            return true;
        }
        if !self.may_open(cx) || !self.reserve(self.input_need(), cx) {
            return false;
        }
        self.check_late(cx);
        !self.connection.closing.get()
    }

    /// Ends the connection if a large frame is late, or stalls while others wait for memory.
    fn check_late(&mut self, cx: &mut Context<'_>) {
        let Some(large) = &mut self.large else { return };
        let missing = self.frames.missing();
        while missing > 0 && large.look.as_mut().poll(cx).is_ready() {
            let arrived = large.missing.saturating_sub(missing);
            if !std::mem::take(&mut large.paused) {
                large.steps += 1;
                let stalls = arrived < LEAST_PER_STEP && self.transport.memory.has_waiting();
                if stalls || large.steps >= LARGE_FRAME_STEPS {
                    return self.give_up_late();
                }
            }
            large.missing = missing;
            large.look = Box::pin(rt::time::sleep(self.transport.limits.large_frame_step));
        }
    }

    #[cold]
    fn give_up_late(&mut self) {
        let after = self.transport.limits.large_frame_step * self.large.take().map_or(0, |large| large.steps);
        let len = self.frames.incomplete_len();
        let error = Error::Overloaded(format!(
            "The request of {len} bytes did not arrive in time: after {after:?}, {} bytes are missing. Send it again, faster or in parts",
            self.frames.missing()
        ));
        let version = self.connection.version.get().map_or(4, |version| version as u8);
        self.connection.outbox(|out| out.foreign_error(version, 0, &error));
        self.connection.closing.set(true);
    }
}
