//! The content of Data.db as a window that moves on: chunks out of the cache or from disk, with read-ahead.
//!
//! What is asked for next is always a prefix of the window, so decoding works on plain slices. Chunks that come from disk
//! together are decompressed into one buffer, of which the cache gets slices, and which becomes the window as it is; where an
//! unfiltered crosses from one buffer to the next, only its pieces are joined. Readers that may not fill the cache decompress
//! into one buffer after another.
//!
//! Reads grow: one chunk, then as much again as was read in sequence, up to 512 KiB or what the reader was given. Sequential readers start larger and have
//! the next window under way while they decode the current one; those that somebody waits for have up to four, once they have read on for a while and
//! as far as the shard has room for it: twice a large page, so that the disk works while pages are on their way. Chunks that lie together are read together.

use super::{LARGEST_WINDOW, ReadOptions};
use crate::cache::{Kind, RoomAhead};
use crate::error::Error;
use crate::large_reads::{LARGE, LargeRead};
use crate::table::Sstable;
use bytes::Bytes;
use rt::fs::IoClass;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

/// First window of a sequential reader, in bytes of content.
const FIRST_WINDOW: u64 = 64 << 10;
/// Readers that did not say they are sequential read ahead from here on.
const SEQUENTIAL_FROM: u64 = 64 << 10;
/// After so many bytes in sequence, a full cache gets a sample only.
const SAMPLED_FROM: u64 = 1 << 20;
/// Reads under way for a reader that somebody waits for, once it has read on for long.
const MOST_AHEAD: usize = 4;
/// How much is decompressed at once, into one buffer.
const DECODE_AHEAD: usize = 32 << 10;
/// Something large is in memory so many times while it is read: in the window, and decoded.
pub(crate) const LARGE_COPIES: usize = 2;
/// What is left of a window for something large is moved to a buffer of at least this size, in bytes.
const LEAST_WINDOW: usize = 4 << 10;
/// The least that is taken from the next buffer to join it with what is left of the last.
const JOINED: usize = 256;

type Read = Pin<Box<dyn Future<Output = Result<Bytes, Error>>>>;

/// Stored chunks `first..end`.
struct Stored {
    first: u64,
    end: u64,
    bytes: Bytes,
    /// Whether the cache gets its content.
    fills: bool,
}

/// A read of stored chunks that is under way.
struct Ahead {
    first: u64,
    end: u64,
    read: Read,
    /// What it takes of the shard's room, if it is not the only one.
    _room: Option<RoomAhead>,
}

enum Window {
    Chunk(Bytes),
    Own(Vec<u8>),
}

/// See the module.
pub(crate) struct Stream {
    table: Rc<Sstable>,
    options: ReadOptions,
    window: Window,
    /// Where the window begins in the content, and how much of it was consumed.
    base: u64,
    at: usize,
    /// Content whose beginning is joined to the window's end, and where it begins.
    joined: Option<(u64, Bytes)>,
    /// A buffer for the next window of its own.
    spare: Vec<u8>,
    stored: Option<Stored>,
    /// Content that was decompressed already: from which chunk on, in order.
    decoded: VecDeque<(u64, Bytes)>,
    /// Reads under way, in order.
    ahead: VecDeque<Ahead>,
    /// Content bytes taken in sequence since the last jump.
    run: u64,
    /// Nothing behind this place is read ahead.
    limit: u64,
    /// Everything up to this place will be wanted.
    expected: u64,
    /// The memory for something large, with its bytes.
    large: Option<(usize, LargeRead)>,
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
        }
    }

    fn window(&self) -> &[u8] {
        match &self.window {
            Window::Chunk(bytes) => bytes,
            Window::Own(bytes) => bytes,
        }
    }

    /// Where the unread content begins.
    pub fn position(&self) -> u64 {
        self.base + self.at as u64
    }

    /// The unread part of the window.
    #[inline]
    pub fn rest(&self) -> &[u8] {
        self.window().get(self.at..).unwrap_or_default()
    }

    /// Whether all content was read.
    pub fn at_end(&self) -> bool {
        self.position() >= self.table.content_length
    }

    /// Nothing behind `limit` will be wanted.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit.min(self.table.content_length);
    }

    /// Everything from here to `place` will be wanted.
    pub fn expect(&mut self, place: u64) {
        self.expected = place;
    }

    /// Steps over `n` bytes of content, loaded or not.
    #[inline]
    pub fn consume(&mut self, n: usize) {
        if self.at + n <= self.window().len() {
            self.at += n;
        } else {
            self.seek(self.position().saturating_add(n as u64));
        }
    }

    /// Goes to a place in the content.
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

    /// Makes at least `n` bytes available. Running into the end of the content is damage.
    pub async fn require(&mut self, n: usize) -> Result<(), Error> {
        if n >= LARGE {
            self.hold(n).await;
        }
        while self.rest().len() < n {
            if self.table.content_length.saturating_sub(self.position()) < n as u64 {
                return Err(self.corrupt("something reaches beyond the end"));
            }
            self.load(n - self.rest().len()).await?;
        }
        Ok(())
    }

    /// Waits until there is memory for something large: for its bytes in the window, and for what is made of them.
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

    /// Gives back what it took of the budget for something large, which nobody has any more.
    pub fn leave_budget(&mut self) {
        self.large = None;
    }

    /// Whether the window was made for something large, which is decoded.
    #[inline]
    pub fn has_large_window(&self) -> bool {
        matches!(&self.window, Window::Own(own) if own.capacity() >= LARGE) && self.rest().len() < LARGE
    }

    /// Gives back a window that something large was read into. What is unread stays.
    #[cold]
    pub fn drop_large_window(&mut self) {
        let place = self.position();
        let mut small = Vec::with_capacity(self.rest().len().max(LEAST_WINDOW));
        small.extend_from_slice(self.rest());
        self.window = Window::Own(small);
        (self.base, self.at) = (place, 0);
    }

    /// Makes more available than there is. Running into the end of the content is damage.
    pub async fn more(&mut self) -> Result<(), Error> {
        self.require(self.rest().len() + 1).await
    }

    pub fn corrupt(&self, why: &str) -> Error {
        Error::corrupt(self.table.data.path(), self.position(), why)
    }

    /// Gives back what is held for later; what is unread is loaded again when it is wanted.
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

    /// Whether it holds memory for something large.
    pub fn holds_large(&self) -> bool {
        self.large.is_some()
    }

    /// What is held in memory, about.
    pub fn memory_bytes(&self) -> usize {
        let ahead = |ahead: &Ahead| self.table.chunk_start(ahead.end) - self.table.chunk_start(ahead.first);
        self.window().len()
            + self.spare.capacity()
            + self.joined.as_ref().map_or(0, |(_, content)| content.len())
            + self.stored.as_ref().map_or(0, |stored| stored.bytes.len())
            + self.decoded.iter().map(|(_, bytes)| bytes.len()).sum::<usize>()
            + self.ahead.iter().map(ahead).sum::<u64>() as usize
    }

    /// Goes over to the content that is joined to the window, or joins `need` bytes more of it; false if there is none left.
    fn go_on_joined(&mut self, need: usize) -> bool {
        let Some((start, content)) = self.joined.take() else { return false };
        if let Some(skip) = self.position().checked_sub(start) {
            self.keep_spare();
            (self.window, self.base, self.at) = (Window::Chunk(content), start, skip as usize);
            return true;
        }
        let Window::Own(own) = &mut self.window else { unreachable!("what is joined is the window's own") };
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
        if self.go_on_joined(need) {
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

    /// Reads chunk `n`, and more if that seems wise.
    async fn read(&mut self, n: u64, need: usize) -> Result<(), Error> {
        let table = self.table.clone();
        let length = table.chunk_length() as u64;
        self.stored = None;
        let end = self.window_end(n, need as u64);
        let claim = self.fills(n, end).then(|| table.cached.claim(Kind::Data, n, end));
        let end = match &claim {
            Some(claim) => n + claim.len(),
            None if self.options.use_cache => {
                (n + 1..end).find(|&chunk| table.cached.has(Kind::Data, chunk)).unwrap_or(end)
            }
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

    /// The most content that is read at once.
    fn largest_window(&self) -> u64 {
        self.options.window.clamp(FIRST_WINDOW as u32, LARGEST_WINDOW).into()
    }

    /// The chunk up to which a read that starts at chunk `n` goes.
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

    /// Starts to read what comes behind the chunks at hand, for readers that go on and on.
    async fn read_ahead(&mut self) {
        while self.ahead.len() < self.wanted_ahead() {
            let room = match self.ahead.is_empty() {
                true => None,
                false => match self.table.cached.room_ahead(self.largest_window() as usize) {
                    None => return,
                    room => room,
                },
            };
            if !self.read_on(room).await {
                return;
            }
        }
    }

    /// How many reads are to be under way, if there is room.
    fn wanted_ahead(&self) -> usize {
        let goes_on = self.options.read_ahead || self.run >= SEQUENTIAL_FROM;
        if !goes_on || self.options.class != IoClass::Foreground {
            return usize::from(goes_on);
        }
        (1 + (self.run / (2 * self.largest_window())) as usize).min(MOST_AHEAD)
    }

    /// Starts one more read; false if there is nothing to be read.
    async fn read_on(&mut self, room: Option<RoomAhead>) -> bool {
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
        let end = (first + 1..end).find(|&chunk| cached(chunk)).unwrap_or(end);
        let (start, until) = (self.table.chunk_start(first), self.table.chunk_start(end));
        let (table, class) = (self.table.clone(), self.options.class);
        let mut read: Read = Box::pin(async move { table.data.read_at(start, (until - start) as usize, class).await });
        // The first poll is what submits the read.
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

    /// Whether the cache gets the content of these chunks.
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

    fn stored_chunk<'s>(&self, n: u64, stored: &'s Stored) -> &'s [u8] {
        let start = self.table.chunk_start(stored.first);
        let range = (self.table.chunk_start(n) - start) as usize..(self.table.chunk_start(n + 1) - start) as usize;
        &stored.bytes[range]
    }

    /// Chunks from `n` on, before `end`, as much as is decompressed at once; at least one. An error in a later one is left for the
    /// time when it is wanted: what came before is sound, and may be all that is wanted.
    fn decode_together(&self, n: u64, end: u64, stored: &Stored) -> Result<Bytes, Error> {
        let length = self.table.chunk_length();
        let mut out = Vec::with_capacity(((end - n) as usize * length).min(DECODE_AHEAD.max(length)));
        self.decode_to(n, end, stored, &mut out)?;
        Ok(out.into())
    }

    /// Appends chunks as [`Stream::decode_together`]; says which comes next.
    fn decode_to(&self, n: u64, end: u64, stored: &Stored, out: &mut Vec<u8>) -> Result<u64, Error> {
        let before = out.len();
        let mut chunk = n;
        while chunk < end && out.len() - before < DECODE_AHEAD {
            match self.table.decode_chunk(chunk, self.stored_chunk(chunk, stored), out) {
                Err(error) if chunk == n => return Err(error),
                Err(_) => break,
                Ok(()) => chunk += 1,
            }
        }
        Ok(chunk)
    }

    /// One chunk of content that begins with chunk `first`.
    fn chunk_of(&self, content: &Bytes, first: u64, chunk: u64) -> Bytes {
        let start = (chunk - first) as usize * self.table.chunk_length();
        content.slice(start..start + self.table.chunk_content(chunk))
    }

    /// Appends chunk `n` out of the stored ones, and some more.
    fn decode(&mut self, n: u64, need: usize) -> Result<(), Error> {
        let Some(stored) = self.stored.take() else { unreachable!("the caller has looked") };
        let result = self.decode_from(n, &stored, need);
        self.stored = Some(stored);
        result
    }

    fn decode_from(&mut self, n: u64, stored: &Stored, need: usize) -> Result<(), Error> {
        let length = self.table.chunk_length() as u64;
        if stored.fills {
            let content = self.decode_together(n, stored.end, stored)?;
            for chunk in n..n + (content.len() as u64).div_ceil(length) {
                self.table.cached.insert(Kind::Data, chunk, &self.chunk_of(&content, n, chunk));
            }
            self.push(n, content, need);
            return Ok(());
        }
        let mut own = self.take_rest(n);
        make_room(&mut own, need);
        let next = self.decode_to(n, stored.end, stored, &mut own);
        self.window = Window::Own(own);
        self.run += (next? - n) * length;
        Ok(())
    }

    /// Appends content that begins with chunk `n`: all of it, or at least `need` bytes.
    fn push(&mut self, n: u64, content: Bytes, need: usize) {
        self.run += content.len() as u64;
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

    /// The unread bytes, alone in a buffer to which chunk `n` is appended next. If there are none, the window is moved to the
    /// start of that chunk.
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
                // A buffer for something large goes with it.
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

    /// Keeps the window's own buffer for the next time that one is wanted.
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

/// Makes room for as much as something large still needs at once: doubling would take up to twice as much.
fn make_room(own: &mut Vec<u8>, need: usize) {
    if need >= LARGE && own.capacity() - own.len() < need {
        own.reserve_exact(need + 2 * DECODE_AHEAD);
    }
}
