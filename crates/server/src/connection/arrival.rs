//! When the requests of a connection were received: their timeouts begin then.
//!
//! One reading of the clock serves all frames of a read. Two kinds of frames came earlier:
//!
//! - The loop does not empty the socket if the poll's time slice was used up, or if statements are
//!   pending. Meanwhile it looks at times how much the socket holds. All of it has been received by
//!   then: a [`Mark`]. Bytes that reach an empty socket are new. A wait for the client is not
//!   marked.
//! - For a frame that is partly in the buffer, the time for which the connection has to wait counts
//!   as well. The socket may have been too small for the rest of the frame.
//!
//! A request that has waited for long on a shard without idle time is refused. If all were served,
//! all would be late, and the queue would outlast the overload. A burst is served.

use rt::time::{Duration, Instant};
use std::collections::VecDeque;

/// The least time between two marks.
const MARK_EVERY: Duration = Duration::from_millis(50);
/// The most marks of a connection, for 10 s.
const MARKS: usize = 200;
/// Requests are refused when the overload has lasted for this multiple of the longest wait. The
/// overload ends after as long a time without such waits.
const LASTING: u32 = 10;

/// The input up to a position was received by a moment.
struct Mark {
    at: Instant,
    /// In bytes since the connection began.
    end: u64,
}

/// When a frame was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Received {
    /// At the latest.
    pub at: Instant,
    /// How long it waited, if that is too long.
    pub too_long: Option<Duration>,
}

/// When the frames of a connection were received.
pub(super) struct Arrival {
    /// When the socket was last read.
    read: Instant,
    /// Bytes read since the connection began.
    position: u64,
    /// Ordered by time and position.
    marks: VecDeque<Mark>,
    marked: Option<Instant>,
    /// Since when the socket is not read, because the connection has to wait.
    unread_since: Option<Instant>,
    /// How long the socket was not read since the beginning of the incomplete frame was received.
    delay: Duration,
    /// How long frames may wait; longer while the overload is new. 0: without limit.
    longest_wait: Duration,
    /// Since when frames wait too long, at times.
    overloaded_since: Option<Instant>,
    /// The last frame that has waited too long.
    late_at: Option<Instant>,
}

impl Arrival {
    /// For a connection that was read at `now`.
    pub fn new(now: Instant, longest_wait: Duration) -> Arrival {
        Arrival {
            read: now,
            position: 0,
            marks: VecDeque::new(),
            marked: None,
            unread_since: None,
            delay: Duration::ZERO,
            longest_wait,
            overloaded_since: None,
            late_at: None,
        }
    }

    /// The socket is empty, or what it holds waits for the client.
    #[inline]
    pub fn forget_marks(&mut self) {
        if self.marked.take().is_some() {
            self.marks.clear();
        }
    }

    /// The connection has to wait at `now`, and is not read meanwhile.
    pub fn pauses(&mut self, now: Instant) {
        self.unread_since.get_or_insert(now);
    }

    /// Whether [`Arrival::mark`] should be called.
    pub fn wants_mark(&self, now: Instant) -> bool {
        self.marks.len() < MARKS && self.marked.is_none_or(|at| now.saturating_duration_since(at) >= MARK_EVERY)
    }

    /// The socket held `unread` bytes at `now`.
    pub fn mark(&mut self, now: Instant, unread: usize) {
        self.marked = Some(now);
        self.marks.push_back(Mark { at: now, end: self.position + unread as u64 });
    }

    /// `bytes` were read at `now`. `buffered` bytes of an incomplete frame were there before.
    #[inline]
    pub fn has_read(&mut self, now: Instant, bytes: usize, buffered: usize) {
        self.read = now;
        self.position += bytes as u64;
        if let Some(since) = self.unread_since.take()
            && buffered > 0
        {
            self.delay += now.saturating_duration_since(since);
        }
    }

    /// When the frame was received that was taken from the buffer now. `left` bytes are left in
    /// it, as they were received.
    #[inline]
    pub fn of_frame(&mut self, now: Instant, left: usize) -> Received {
        match self.delay.is_zero() && self.marks.is_empty() {
            true => Received { at: self.read, too_long: None },
            false => self.of_early_frame(now, left),
        }
    }

    #[cold]
    fn of_early_frame(&mut self, now: Instant, left: usize) -> Received {
        let read = self.read.checked_sub(std::mem::take(&mut self.delay)).unwrap_or(self.read);
        let end = self.position.saturating_sub(left as u64);
        while self.marks.front().is_some_and(|mark| mark.end < end) {
            self.marks.pop_front();
        }
        let at = self.marks.front().map_or(read, |mark| mark.at.min(read));
        let waited = now.saturating_duration_since(at);
        Received { at, too_long: self.is_too_long(now, waited).then_some(waited) }
    }

    fn is_too_long(&mut self, now: Instant, waited: Duration) -> bool {
        // A shorter wait does not end the overload: perhaps refusals have emptied the queue, and it
        // fills again.
        if self.longest_wait.is_zero() || waited < self.longest_wait {
            return false;
        }
        let lasting = self.longest_wait * LASTING;
        let late_before = self.late_at.replace(now);
        if late_before.is_none_or(|at| now.saturating_duration_since(at) >= lasting) {
            self.overloaded_since = Some(now);
        }
        self.overloaded_since.is_some_and(|since| now.saturating_duration_since(since) >= lasting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_millis(500);

    fn at(start: Instant) -> impl Fn(u64) -> Instant {
        move |millis| start + Duration::from_millis(millis)
    }

    #[test]
    fn the_time_in_which_an_incomplete_frame_is_not_read_counts_for_it_alone() {
        let start = rt::time::now();
        let at = at(start);
        let mut arrival = Arrival::new(start, Duration::ZERO);
        let of_frame = |arrival: &mut Arrival| arrival.of_frame(at(99_000), 0).at;
        arrival.has_read(at(1_000), 5, 0);
        assert_eq!(of_frame(&mut arrival), at(1_000));
        arrival.pauses(at(2_000));
        arrival.pauses(at(3_000));
        arrival.has_read(at(5_000), 5, 10);
        arrival.pauses(at(6_000));
        arrival.has_read(at(7_000), 5, 20);
        assert_eq!(of_frame(&mut arrival), at(3_000), "it was not read for 3 s and 1 s");
        assert_eq!(of_frame(&mut arrival), at(7_000));
        arrival.pauses(at(8_000));
        arrival.has_read(at(9_000), 5, 0);
        assert_eq!(of_frame(&mut arrival), at(9_000), "nothing of it was there");
    }

    #[test]
    fn bytes_in_a_socket_were_received_by_their_mark() {
        let start = rt::time::now();
        let at = at(start);
        let mut arrival = Arrival::new(start, Duration::ZERO);
        arrival.has_read(at(0), 100, 0);
        assert!(arrival.wants_mark(at(10)));
        // 60 of 100 bytes are taken from the buffer; the socket holds 200.
        arrival.mark(at(10), 200);
        assert!(!arrival.wants_mark(at(20)));
        arrival.mark(at(60), 250);
        let mut of_frame = |left| arrival.of_frame(at(5_000), left).at;
        assert_eq!(of_frame(40), at(0), "it was read before the mark");
        arrival.has_read(at(1_000), 300, 0);
        let mut of_frame = |left| arrival.of_frame(at(5_000), left).at;
        assert_eq!([of_frame(200), of_frame(100), of_frame(99), of_frame(50)], [at(10), at(10), at(60), at(60)]);
        assert_eq!([of_frame(49), of_frame(0)], [at(1_000); 2], "it came after the marks");
    }

    #[test]
    fn bytes_that_reach_an_empty_socket_are_new() {
        let start = rt::time::now();
        let at = at(start);
        let mut arrival = Arrival::new(start, LONGEST);
        // An encrypted socket holds more bytes than are read from it.
        arrival.mark(at(0), 200);
        arrival.has_read(at(100), 150, 0);
        assert_eq!(arrival.of_frame(at(100), 0).at, at(0));
        arrival.forget_marks();
        arrival.has_read(at(3_600_000), 20, 0);
        assert_eq!(arrival.of_frame(at(3_600_000), 0), Received { at: at(3_600_000), too_long: None });
        assert!(arrival.wants_mark(at(3_600_000)));
    }

    #[test]
    fn marks_are_bounded() {
        let start = rt::time::now();
        let mut arrival = Arrival::new(start, LONGEST);
        for second in 0..1_000 {
            let now = start + Duration::from_secs(second);
            if arrival.wants_mark(now) {
                arrival.mark(now, second as usize * 10);
            }
        }
        assert_eq!(arrival.marks.len(), MARKS);
    }

    /// Frames that have waited for `waited` ms each, one each 10 ms from `from` to `to`. Returns
    /// how many waited too long.
    fn refused(arrival: &mut Arrival, start: Instant, from: u64, to: u64, waited: u64) -> usize {
        let at = at(start);
        let is_refused = |ms: &u64| {
            arrival.mark(at(ms - waited), 10);
            arrival.has_read(at(*ms), 10, 0);
            arrival.of_frame(at(*ms), 0).too_long.is_some()
        };
        (from..to).step_by(10).filter(is_refused).count()
    }

    #[test]
    fn frames_that_wait_too_long_are_refused_once_the_overload_lasts() {
        let start = rt::time::now();
        let mut arrival = Arrival::new(start, LONGEST);
        assert_eq!(refused(&mut arrival, start, 1_000, 6_000, 600), 0, "a burst");
        assert_eq!(refused(&mut arrival, start, 6_000, 7_000, 600), 100);
        assert_eq!(refused(&mut arrival, start, 7_000, 8_000, 400), 0, "these have not waited for long");
        assert_eq!(refused(&mut arrival, start, 8_000, 9_000, 600), 100, "it still lasts");
        assert_eq!(refused(&mut arrival, start, 9_000, 13_000, 100), 0);
        assert_eq!(refused(&mut arrival, start, 13_000, 13_100, 600), 10, "it continues");
        assert_eq!(refused(&mut arrival, start, 21_000, 26_000, 600), 0, "a new burst");
        for minute in 1..5 {
            let from = 60_000 * minute;
            assert_eq!(refused(&mut arrival, start, from, from + 1_000, 600), 0, "a burst each minute");
        }
        let mut unlimited = Arrival::new(start, Duration::ZERO);
        assert_eq!(refused(&mut unlimited, start, 1_000, 20_000, 900), 0);
    }
}
