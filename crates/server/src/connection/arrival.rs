//! When the requests of a connection were received: their timeouts begin then.
//!
//! One reading of the clock serves all frames of a read, because the socket is read only when no
//! complete frame is buffered. While a connection has to wait, its socket is not read. This time
//! counts for the frame that is partly in the buffer, because the rest of the frame may already
//! have been in the socket. The time of a frame that is entirely in the socket begins when it is
//! read.

use rt::time::{Duration, Instant};

/// When the frames of a connection were received.
pub(super) struct Arrival {
    /// When the socket was last read. All complete frames in the buffer were received then.
    read: Instant,
    /// Since when the socket is not read, because the connection has to wait.
    unread_since: Option<Instant>,
    /// How long the socket was not read since the beginning of the incomplete frame was received.
    delay: Duration,
}

impl Arrival {
    /// For a connection that was read at `now`.
    pub fn new(now: Instant) -> Arrival {
        Arrival { read: now, unread_since: None, delay: Duration::ZERO }
    }

    /// The connection has to wait at `now`, and is not read meanwhile.
    pub fn pauses(&mut self, now: Instant) {
        self.unread_since.get_or_insert(now);
    }

    /// The socket was read at `now`. `buffered` bytes of an incomplete frame were there before.
    #[inline]
    pub fn has_read(&mut self, now: Instant, buffered: usize) {
        self.read = now;
        if let Some(since) = self.unread_since.take()
            && buffered > 0
        {
            self.delay += now.saturating_duration_since(since);
        }
    }

    /// When the frame that is taken from the buffer now was received.
    #[inline]
    pub fn of_frame(&mut self) -> Instant {
        match self.delay.is_zero() {
            true => self.read,
            false => self.read.checked_sub(std::mem::take(&mut self.delay)).unwrap_or(self.read),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_in_which_an_incomplete_frame_is_not_read_counts_for_it_alone() {
        let start = rt::time::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut arrival = Arrival::new(start);
        arrival.has_read(after(1), 0);
        assert_eq!(arrival.of_frame(), after(1));
        arrival.pauses(after(2));
        arrival.pauses(after(3));
        arrival.has_read(after(5), 10);
        arrival.pauses(after(6));
        arrival.has_read(after(7), 20);
        assert_eq!(arrival.of_frame(), after(3), "it was not read for 3 s and 1 s");
        assert_eq!(arrival.of_frame(), after(7));
        arrival.pauses(after(8));
        arrival.has_read(after(9), 0);
        assert_eq!(arrival.of_frame(), after(9), "nothing of it was there");
    }
}
