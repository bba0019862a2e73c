//! The content of Data.db as a moving window: chunks from the cache or from disk, with read-ahead.
//!
//! The next bytes to decode are always a prefix of the window, so decoding works on plain slices.
//! Chunks that come from disk together are decompressed into one buffer. The cache gets slices of
//! the buffer, and the buffer itself becomes the window. Where an unfiltered crosses from one
//! buffer to the next, only its pieces are joined. Readers that may not fill the cache decompress
//! into one buffer after another. The sizes of reads are described in [`super`].

mod content_sum;
mod decode;

use super::{LARGEST_WINDOW, ReadOptions};
use crate::cache::{Kind, ReadAheadReservation};
use crate::error::Error;
use crate::large_reads::{LARGE, LargeRead};
use crate::table::Sstable;
use bytes::Bytes;
use content_sum::ContentSum;
use rt::fs::IoClass;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

/// First window of a sequential reader, in bytes of content.
const FIRST_WINDOW: u64 = 64 << 10;
/// The number of bytes in sequence after which other readers begin to read ahead.
const SEQUENTIAL_FROM: u64 = 64 << 10;
/// The number of bytes in sequence after which only some pages are cached if the cache is full.
const SAMPLED_FROM: u64 = 1 << 20;
/// The most reads in progress for a reader of class [`IoClass::Foreground`] that has read for long.
const MOST_AHEAD: usize = 4;
/// The content that is decompressed at once, into one buffer, in bytes.
const DECODE_AHEAD: usize = 32 << 10;
/// The number of copies of a large row while it is read: in the window, and decoded.
pub(crate) const LARGE_COPIES: usize = 2;
/// The rest of a window for a large row is moved to a buffer of at least this size, in bytes.
const LEAST_WINDOW: usize = 4 << 10;
/// The fewest bytes of the next buffer that are joined with the rest of the last.
const JOINED: usize = 256;

type Read = Pin<Box<dyn Future<Output = Result<Bytes, Error>>>>;

/// Stored chunks `first..end`.
struct Stored {
    first: u64,
    end: u64,
    bytes: Bytes,
    /// Whether the content enters the cache.
    fills: bool,
}

/// A read of stored chunks that is in progress.
struct Ahead {
    first: u64,
    end: u64,
    read: Read,
    /// Its part of the shard's limit, if it is not the reader's only one.
    _room: Option<ReadAheadReservation>,
}

enum Window {
    Chunk(Bytes),
    Own(Vec<u8>),
}

/// The window of one reader.
pub(crate) struct Stream {
    table: Rc<Sstable>,
    options: ReadOptions,
    window: Window,
    /// The start of the window in the content, and the number of its bytes that were consumed.
    base: u64,
    at: usize,
    /// Content whose beginning was joined to the end of the window, and its start.
    joined: Option<(u64, Bytes)>,
    /// A buffer for the next window.
    spare: Vec<u8>,
    stored: Option<Stored>,
    /// Content that is decompressed already, each with its first chunk, in order.
    decoded: VecDeque<(u64, Bytes)>,
    /// Reads in progress, in order.
    ahead: VecDeque<Ahead>,
    /// Content bytes read in sequence since the last jump.
    run: u64,
    /// Nothing after this position is read ahead.
    limit: u64,
    /// Everything up to this position will be needed.
    expected: u64,
    /// The memory reserved for a large row, in bytes, and the reservation.
    large: Option<(usize, LargeRead)>,
    sum: Option<ContentSum>,
}

impl Stream {
    pub fn new(table: Rc<Sstable>, options: ReadOptions) -> Self {
        let limit = table.content_length;
        Stream {
            table,
            options,
            window: Window::Own(Vec::new()),
            base: 0,
            at: 0,
            joined: None,
            spare: Vec::new(),
            stored: None,
            decoded: VecDeque::new(),
            ahead: VecDeque::new(),
            run: 0,
            limit,
            expected: 0,
            large: None,
            sum: None,
        }
    }

    fn window(&self) -> &[u8] {
        match &self.window {
            Window::Chunk(bytes) => bytes,
            Window::Own(bytes) => bytes,
        }
    }

    /// The position in the content of the next unread byte.
    pub fn position(&self) -> u64 {
        self.base + self.at as u64
    }

    /// The unread part of the window.
    #[inline]
    pub fn rest(&self) -> &[u8] {
        self.window().get(self.at..).unwrap_or_default()
    }

    /// Whether all content was consumed.
    pub fn at_end(&self) -> bool {
        self.position() >= self.table.content_length
    }

    /// Nothing after `limit` will be needed.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit.min(self.table.content_length);
    }

    /// Everything from here to `place` will be needed.
    pub fn expect(&mut self, place: u64) {
        self.expected = place;
    }

    /// Skips `n` bytes of content, loaded or not.
    #[inline]
    pub fn consume(&mut self, n: usize) {
        if self.at + n <= self.window().len() {
            self.at += n;
        } else {
            self.seek(self.position().saturating_add(n as u64));
        }
    }

    /// Moves to a position in the content.
    pub fn seek(&mut self, place: u64) {
        if let Some(skip) = place.checked_sub(self.base)
            && skip <= self.window().len() as u64
        {
            self.at = skip as usize;
            return;
        }
        if let Some((start, content)) = self.joined.take()
            && let Some(skip) = place.checked_sub(start)
            && skip <= content.len() as u64
        {
            (self.window, self.base, self.at) = (Window::Chunk(content), start, skip as usize);
            return;
        }
        let before = (self.base + self.window().len() as u64).div_ceil(self.table.chunk_length() as u64);
        let after = place / self.table.chunk_length() as u64;
        // A short skip forward is still sequential reading.
        if !(before..=before + 8).contains(&after) {
            self.run = 0;
        }
        self.window = Window::Own(Vec::new());
        (self.base, self.at) = (place, 0);
    }

    /// Loads until at least `n` unread bytes are in the window. The end of the content before that
    /// is damage.
    pub async fn require(&mut self, n: usize) -> Result<(), Error> {
        if n >= LARGE {
            self.hold(n).await;
        }
        while self.rest().len() < n {
            if self.table.content_length.saturating_sub(self.position()) < n as u64 {
                return Err(self.corrupt("the content ends too early"));
            }
            self.load(n - self.rest().len()).await?;
        }
        Ok(())
    }

    /// Waits until there is memory for a large row: for its bytes in the window, and its decoded
    /// form.
    #[cold]
    async fn hold(&mut self, n: usize) {
        let known = self.large.as_ref().map_or(0, |(bytes, _)| *bytes);
        let left = self.table.content_length.saturating_sub(self.position());
        let cached = &self.table.cached;
        let (all, id) = match self.options {
            ReadOptions { job, read, .. } if job.is_none() && read.is_none() => return,
            ReadOptions { job, read, .. } if job.is_none() => (cached.large_reads().clone(), read),
            ReadOptions { job, .. } => (cached.large_jobs().clone(), job),
        };
        if n <= known || n as u64 > left {
            return;
        }
        let more = Box::pin(all.enter(id, LARGE_COPIES * n)).await;
        self.large = Some((n, more));
    }

    /// Returns the memory for a large row, which has been dropped.
    pub fn leave_budget(&mut self) {
        self.large = None;
    }

    /// Whether the window was made for a large row that has been decoded.
    #[inline]
    pub fn has_large_window(&self) -> bool {
        matches!(&self.window, Window::Own(own) if own.capacity() >= LARGE) && self.rest().len() < LARGE
    }

    /// Drops a window that a large row was read into. Its unread bytes stay.
    #[cold]
    pub fn drop_large_window(&mut self) {
        let place = self.position();
        let mut small = Vec::with_capacity(self.rest().len().max(LEAST_WINDOW));
        small.extend_from_slice(self.rest());
        self.window = Window::Own(small);
        (self.base, self.at) = (place, 0);
    }

    /// Loads at least one more byte. The end of the content is damage.
    pub async fn more(&mut self) -> Result<(), Error> {
        self.require(self.rest().len() + 1).await
    }

    pub fn corrupt(&self, why: &str) -> Error {
        Error::corrupt(self.table.data.path(), self.position(), why)
    }

    /// Drops buffers that are held for later. Unread content is loaded again when it is needed.
    pub fn release(&mut self) {
        let place = self.position();
        self.window = Window::Own(Vec::new());
        (self.base, self.at) = (place, 0);
        self.joined = None;
        self.spare = Vec::new();
        self.stored = None;
        self.decoded.clear();
        self.ahead = VecDeque::new();
        self.large = None;
        self.run = 0;
    }

    /// Copies content that may be in the page cache: single chunks. Others were decompressed for
    /// this reader.
    pub fn copy_cached(&mut self) {
        let length = self.table.chunk_length();
        let joined = self.joined.as_mut().map(|(_, content)| content);
        let window = match &mut self.window {
            Window::Chunk(content) => Some(content),
            Window::Own(_) => None,
        };
        for content in joined.into_iter().chain(window).filter(|content| content.len() <= length) {
            *content = Bytes::copy_from_slice(content);
        }
    }

    /// The pieces of content that it holds.
    #[cfg(test)]
    pub fn held(&self) -> impl Iterator<Item = &[u8]> {
        self.joined.iter().map(|(_, content)| &content[..]).chain([self.window()])
    }

    /// Whether it holds memory for a large row.
    pub fn holds_large(&self) -> bool {
        self.large.is_some()
    }

    /// The memory that it holds, about, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let ahead = |ahead: &Ahead| self.table.chunk_start(ahead.end) - self.table.chunk_start(ahead.first);
        self.window().len()
            + self.spare.capacity()
            + self.joined.as_ref().map_or(0, |(_, content)| content.len())
            + self.stored.as_ref().map_or(0, |stored| stored.bytes.len())
            + self.decoded.iter().map(|(_, bytes)| bytes.len()).sum::<usize>()
            + self.ahead.iter().map(ahead).sum::<u64>() as usize
    }

    /// Moves to the content that is joined to the window, or joins `need` bytes more of it. False
    /// if none is left.
    fn advance_to_joined(&mut self, need: usize) -> bool {
        let Some((start, content)) = self.joined.take() else { return false };
        if let Some(skip) = self.position().checked_sub(start) {
            self.keep_spare();
            (self.window, self.base, self.at) = (Window::Chunk(content), start, skip as usize);
            return true;
        }
        let Window::Own(own) = &mut self.window else { unreachable!("joined chunks are in the window's own buffer") };
        let taken = (self.base + own.len() as u64 - start) as usize;
        let more = content.len().min(taken + need.max(JOINED));
        make_room(own, need);
        own.extend_from_slice(&content[taken..more]);
        if more < content.len() {
            self.joined = Some((start, content));
        }
        true
    }

    /// Appends the next chunk, or several, to the window. There must be one.
    async fn load(&mut self, need: usize) -> Result<(), Error> {
        if self.advance_to_joined(need) {
            return Ok(());
        }
        let table = self.table.clone();
        let length = table.chunk_length() as u64;
        let n = (self.position() + self.rest().len() as u64) / length;
        while let Some((first, content)) = self.decoded.pop_front() {
            if let Some(skip) = n.checked_sub(first).map(|chunks| (chunks * length) as usize)
                && skip < content.len()
            {
                self.push(n, content.slice(skip..), need);
                return Ok(());
            }
        }
        if self.stored.as_ref().is_some_and(|stored| (stored.first..stored.end).contains(&n)) {
            return self.decode(n, need);
        }
        if self.options.use_cache
            && let Some(chunk) = table.cached.get(Kind::Data, n)
        {
            self.push(n, chunk, need);
            return Ok(());
        }
        while self.ahead.front().is_some_and(|ahead| ahead.end <= n) {
            self.ahead.pop_front();
        }
        if let Some(ahead) = self.ahead.front_mut().filter(|ahead| ahead.first <= n) {
            let (first, end) = (ahead.first, ahead.end);
            let bytes = ahead.read.as_mut().await;
            self.ahead.pop_front();
            let fills = self.fills(first, end);
            self.stored = Some(self.check_length(first, end, bytes?, fills)?);
            self.read_ahead().await;
            return self.decode(n, need);
        }
        self.ahead.clear();
        if self.options.use_cache {
            while let Some(flight) = table.cached.flight(Kind::Data, n) {
                let landed = flight.wait().await;
                if let Some(chunk) = landed.or_else(|| table.cached.get(Kind::Data, n)) {
                    self.push(n, chunk, need);
                    return Ok(());
                }
            }
        }
        self.read(n, need).await
    }

    /// Reads chunk `n`, and further chunks up to the end of the window.
    async fn read(&mut self, n: u64, need: usize) -> Result<(), Error> {
        let table = self.table.clone();
        let length = table.chunk_length() as u64;
        self.stored = None;
        let end = self.window_end(n, need as u64);
        let claim = self.fills(n, end).then(|| table.cached.claim(Kind::Data, n, end));
        let end = match &claim {
            Some(claim) => n + claim.len(),
            None if self.options.use_cache => table.end_before_cached(n, end),
            None => end,
        };
        let (start, stop) = (table.chunk_start(n), table.chunk_start(end));
        let bytes = table.data.read_at(start, (stop - start) as usize, self.options.class).await?;
        let stored = self.check_length(n, end, bytes, claim.is_some())?;
        match claim {
            None => self.stored = Some(stored),
            Some(claim) => {
                let mut first = n;
                while first < end {
                    let content = self.decode_together(first, end, &stored)?;
                    let next = first + (content.len() as u64).div_ceil(length);
                    for chunk in first..next {
                        claim.complete((chunk - n) as usize, &self.chunk_of(&content, first, chunk));
                    }
                    self.decoded.push_back((first, content));
                    first = next;
                    rt::task::maybe_yield().await;
                }
            }
        }
        self.run += (end - n - 1) * length;
        self.read_ahead().await;
        self.run -= (end - n - 1) * length;
        match self.decoded.pop_front() {
            Some((first, content)) => {
                self.push(first, content, need);
                Ok(())
            }
            None => self.decode(n, need),
        }
    }

    /// The most content that is read at once, in bytes.
    fn largest_window(&self) -> u64 {
        self.options.window.clamp(FIRST_WINDOW as u32, LARGEST_WINDOW).into()
    }

    /// The end, in chunks, of a read that starts at chunk `n`.
    fn window_end(&self, n: u64, need: u64) -> u64 {
        let length = self.table.chunk_length() as u64;
        let start = n * length;
        let most = self.largest_window();
        let grown = match self.options.read_ahead {
            true => self.run.clamp(FIRST_WINDOW, most),
            false => self.run.min(most),
        };
        let expected = self.expected.saturating_sub(start).min(most / 4);
        let wise = grown.max(expected).min(self.limit.saturating_sub(start));
        let stop = start.saturating_add(need.max(wise).max(1)).min(self.table.content_length);
        stop.div_ceil(length).max(n + 1)
    }

    /// Starts reads of the chunks after the loaded ones, for sequential readers.
    async fn read_ahead(&mut self) {
        while self.ahead.len() < self.wanted_ahead() {
            let room = match self.ahead.is_empty() {
                true => None,
                false => match self.table.cached.reserve_read_ahead(self.largest_window() as usize) {
                    None => return,
                    room => room,
                },
            };
            if !self.start_read(room).await {
                return;
            }
        }
    }

    /// The wanted number of reads in progress, within the limit.
    fn wanted_ahead(&self) -> usize {
        let goes_on = self.options.read_ahead || self.run >= SEQUENTIAL_FROM;
        if !goes_on || self.options.class != IoClass::Foreground {
            return usize::from(goes_on);
        }
        (1 + (self.run / (2 * self.largest_window())) as usize).min(MOST_AHEAD)
    }

    /// Starts one more read. False if nothing is left to read.
    async fn start_read(&mut self, room: Option<ReadAheadReservation>) -> bool {
        let length = self.table.chunk_length() as u64;
        let behind_stored = self.stored.as_ref().map_or(0, |stored| stored.end);
        let behind_ahead = self.ahead.back().map_or(0, |ahead| ahead.end);
        let mut first = behind_stored
            .max(behind_ahead)
            .max(self.decoded.back().map_or(0, |(first, content)| first + (content.len() as u64).div_ceil(length)));
        let stop = self.limit.div_ceil(length).min(self.table.chunk_count());
        let cached = |chunk: u64| self.options.use_cache && self.table.cached.has(Kind::Data, chunk);
        let horizon = first + self.largest_window().div_ceil(length);
        while first < stop.min(horizon) && cached(first) {
            first += 1;
        }
        if first >= stop || cached(first) {
            return false;
        }
        let end = self.window_end(first, 1).min(stop);
        let end = if self.options.use_cache { self.table.end_before_cached(first, end) } else { end };
        let (start, until) = (self.table.chunk_start(first), self.table.chunk_start(end));
        let (table, class) = (self.table.clone(), self.options.class);
        let mut read: Read = Box::pin(async move { table.data.read_at(start, (until - start) as usize, class).await });
        // The first poll submits the read.
        let mut early = None;
        poll_fn(|cx| {
            if let Poll::Ready(done) = read.as_mut().poll(cx) {
                early = Some(done);
            }
            Poll::Ready(())
        })
        .await;
        if let Some(done) = early {
            read = Box::pin(std::future::ready(done));
        }
        self.ahead.push_back(Ahead { first, end, read, _room: room });
        true
    }

    /// Whether the content of these chunks enters the cache.
    fn fills(&self, first: u64, end: u64) -> bool {
        let bytes = (end - first) as usize * self.table.chunk_length();
        self.options.fill_cache && (self.run < SAMPLED_FROM || self.table.cached.samples(bytes))
    }

    fn check_length(&self, first: u64, end: u64, bytes: Bytes, fills: bool) -> Result<Stored, Error> {
        let (start, stop) = (self.table.chunk_start(first), self.table.chunk_start(end));
        if bytes.len() as u64 != stop - start {
            let at = start + bytes.len() as u64;
            return Err(Error::corrupt(self.table.data.path(), at, "the file ends too early"));
        }
        Ok(Stored { first, end, bytes, fills })
    }

    /// Appends content that begins with chunk `n`: all of it, or at least `need` bytes.
    fn push(&mut self, n: u64, content: Bytes, need: usize) {
        self.run += content.len() as u64;
        self.add_to_sum(n, &content);
        let start = n * self.table.chunk_length() as u64;
        if self.rest().is_empty() {
            (self.at, self.base) = ((self.position() - start) as usize, start);
            self.keep_spare();
            self.window = Window::Chunk(content);
        } else {
            let mut own = self.take_rest(n);
            let taken = content.len().min(need.max(JOINED));
            make_room(&mut own, need);
            own.extend_from_slice(&content[..taken]);
            self.window = Window::Own(own);
            if taken < content.len() {
                self.joined = Some((start, content));
            }
        }
    }

    /// The unread bytes in a buffer for chunk `n`. Without any, moves the window to its start.
    fn take_rest(&mut self, n: u64) -> Vec<u8> {
        let place = self.position();
        if self.rest().is_empty() {
            let start = n * self.table.chunk_length() as u64;
            (self.base, self.at) = (start, (place - start) as usize);
            return match std::mem::replace(&mut self.window, Window::Own(Vec::new())) {
                Window::Own(mut own) if own.capacity() < LARGE => {
                    own.clear();
                    own
                }
                // A buffer for a large row is dropped here.
                Window::Own(_) | Window::Chunk(_) => std::mem::take(&mut self.spare),
            };
        }
        let at = std::mem::replace(&mut self.at, 0);
        self.base = place;
        match std::mem::replace(&mut self.window, Window::Own(Vec::new())) {
            Window::Own(mut own) => {
                own.drain(..at);
                own
            }
            Window::Chunk(chunk) => {
                let mut own = std::mem::take(&mut self.spare);
                own.extend_from_slice(&chunk[at..]);
                own
            }
        }
    }

    /// Keeps the window's buffer for the next window, unless it is large.
    fn keep_spare(&mut self) {
        if let Window::Own(own) = &mut self.window
            && own.capacity() > self.spare.capacity()
            && own.capacity() < LARGE
        {
            own.clear();
            self.spare = std::mem::take(own);
        }
    }
}

/// Reserves exactly the memory that a large row still needs. Doubling would reserve up to twice as
/// much.
fn make_room(own: &mut Vec<u8>, need: usize) {
    if need >= LARGE && own.capacity() - own.len() < need {
        own.reserve_exact(need + 2 * DECODE_AHEAD);
    }
}
