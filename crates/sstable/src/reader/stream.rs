//! The content of Data.db as a window that moves on: chunks out of the cache or from disk, with read-ahead.
//!
//! What is asked for next is always a prefix of the window, so decoding works on plain slices. A chunk that is used alone is
//! not copied; where an unfiltered crosses chunks, its pieces are joined. Readers that may not fill the cache decompress
//! whole windows into one buffer.
//!
//! Reads grow: one chunk, then as much again as was read in sequence, up to 512 KiB. Sequential readers start larger and have
//! the next window under way while they decode the current one. Chunks that lie together are read together.

use super::ReadOptions;
use crate::cache::Kind;
use crate::error::Error;
use crate::table::Sstable;
use bytes::Bytes;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

/// First window of a sequential reader, in bytes of content.
const FIRST_WINDOW: u64 = 64 << 10;
/// The largest window; two are held at once.
const MAX_WINDOW: u64 = 512 << 10;
/// Readers that did not say they are sequential read ahead from here on.
const SEQUENTIAL_FROM: u64 = 64 << 10;
/// How much is decompressed at once by readers that do not fill the cache.
const DECODE_AHEAD: usize = 32 << 10;

/// Chunks that are decompressed between looks at the clock.
const DECODES_PER_YIELD: u64 = 16;

type Read = Pin<Box<dyn Future<Output = io::Result<Bytes>>>>;

/// Stored chunks `first..end`.
struct Stored {
    first: u64,
    end: u64,
    bytes: Bytes,
}

/// A read of stored chunks that is under way.
struct Ahead {
    first: u64,
    end: u64,
    read: Read,
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
    stored: Option<Stored>,
    /// Chunks that were decompressed already, in order.
    decoded: VecDeque<(u64, Bytes)>,
    ahead: Option<Ahead>,
    /// Content bytes taken in sequence since the last jump.
    run: u64,
    /// Nothing behind this place is read ahead.
    limit: u64,
    /// Everything up to this place will be wanted.
    expected: u64,
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
            stored: None,
            decoded: VecDeque::new(),
            ahead: None,
            run: 0,
            limit,
            expected: 0,
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
        while self.rest().len() < n {
            if self.table.content_length.saturating_sub(self.position()) < n as u64 {
                return Err(self.corrupt("something reaches beyond the end"));
            }
            self.load(n - self.rest().len()).await?;
        }
        Ok(())
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
        self.stored = None;
        self.decoded.clear();
        self.ahead = None;
        self.run = 0;
    }

    /// What is held in memory, about.
    pub fn memory_bytes(&self) -> usize {
        let ahead = |ahead: &Ahead| self.table.chunk_start(ahead.end) - self.table.chunk_start(ahead.first);
        self.window().len()
            + self.stored.as_ref().map_or(0, |stored| stored.bytes.len())
            + self.decoded.iter().map(|(_, bytes)| bytes.len()).sum::<usize>()
            + self.ahead.as_ref().map_or(0, ahead) as usize
    }

    /// Appends the next chunk, or several, to the window. There must be one.
    async fn load(&mut self, need: usize) -> Result<(), Error> {
        let table = self.table.clone();
        let length = table.chunk_length() as u64;
        let n = (self.position() + self.rest().len() as u64) / length;
        while self.decoded.front().is_some_and(|(number, _)| *number < n) {
            self.decoded.pop_front();
        }
        if self.decoded.front().is_some_and(|(number, _)| *number == n)
            && let Some((_, chunk)) = self.decoded.pop_front()
        {
            self.push(n, chunk);
            return Ok(());
        }
        self.decoded.clear();
        if self.stored.as_ref().is_some_and(|stored| (stored.first..stored.end).contains(&n)) {
            return self.decode(n);
        }
        if self.options.use_cache
            && let Some(chunk) = table.cached.get(Kind::Data, n)
        {
            self.push(n, chunk);
            return Ok(());
        }
        if self.ahead.as_ref().is_some_and(|ahead| (ahead.first..ahead.end).contains(&n)) {
            let bytes = match &mut self.ahead {
                Some(ahead) => ahead.read.as_mut().await,
                None => unreachable!("looked at above"),
            };
            if let Some(ahead) = self.ahead.take() {
                self.stored = Some(self.check_length(ahead.first, ahead.end, bytes?)?);
            }
            self.read_ahead().await;
            return self.decode(n);
        }
        self.ahead = None;
        if self.options.use_cache {
            while let Some(flight) = table.cached.flight(Kind::Data, n) {
                let landed = flight.wait().await;
                if let Some(chunk) = landed.or_else(|| table.cached.get(Kind::Data, n)) {
                    self.push(n, chunk);
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
        let claim = self.options.fill_cache.then(|| table.cached.claim(Kind::Data, n, end));
        let end = match &claim {
            Some(claim) => n + claim.len(),
            None if self.options.use_cache => {
                (n + 1..end).find(|&chunk| table.cached.has(Kind::Data, chunk)).unwrap_or(end)
            }
            None => end,
        };
        let (start, stop) = (table.chunk_start(n), table.chunk_start(end));
        let bytes = table.data.read_at(start, (stop - start) as usize, self.options.class).await?;
        let stored = self.check_length(n, end, bytes)?;
        match claim {
            None => self.stored = Some(stored),
            Some(claim) => {
                for chunk in n..end {
                    let content = self.decode_alone(chunk, &stored)?;
                    claim.complete((chunk - n) as usize, &content);
                    self.decoded.push_back((chunk, content));
                    if (chunk - n) % DECODES_PER_YIELD == DECODES_PER_YIELD - 1 {
                        rt::task::maybe_yield().await;
                    }
                }
            }
        }
        self.run += (end - n - 1) * length;
        self.read_ahead().await;
        self.run -= (end - n - 1) * length;
        match self.decoded.pop_front() {
            Some((number, chunk)) => {
                self.push(number, chunk);
                Ok(())
            }
            None => self.decode(n),
        }
    }

    /// The chunk up to which a read that starts at chunk `n` goes.
    fn window_end(&self, n: u64, need: u64) -> u64 {
        let length = self.table.chunk_length() as u64;
        let start = n * length;
        let grown = match self.options.read_ahead {
            true => self.run.clamp(FIRST_WINDOW, MAX_WINDOW),
            false => self.run.min(MAX_WINDOW),
        };
        let expected = self.expected.saturating_sub(start).min(MAX_WINDOW / 4);
        let wise = grown.max(expected).min(self.limit.saturating_sub(start));
        let stop = start.saturating_add(need.max(wise).max(1)).min(self.table.content_length);
        stop.div_ceil(length).max(n + 1)
    }

    /// Starts to read what comes behind the chunks at hand, for readers that go on and on.
    async fn read_ahead(&mut self) {
        if !(self.options.read_ahead || self.run >= SEQUENTIAL_FROM) || self.ahead.is_some() {
            return;
        }
        let behind_stored = self.stored.as_ref().map_or(0, |stored| stored.end);
        let mut first = behind_stored.max(self.decoded.back().map_or(0, |(number, _)| number + 1));
        let length = self.table.chunk_length() as u64;
        let stop = self.limit.div_ceil(length).min(self.table.chunk_count());
        let cached = |chunk: u64| self.options.use_cache && self.table.cached.has(Kind::Data, chunk);
        let horizon = first + MAX_WINDOW.div_ceil(length);
        while first < stop.min(horizon) && cached(first) {
            first += 1;
        }
        if first >= stop || cached(first) {
            return;
        }
        let end = self.window_end(first, 1).min(stop);
        let end = (first + 1..end).find(|&chunk| cached(chunk)).unwrap_or(end);
        let (start, until) = (self.table.chunk_start(first), self.table.chunk_start(end));
        let (file, class) = (self.table.data.clone(), self.options.class);
        let mut read: Read = Box::pin(async move { file.read_at(start, (until - start) as usize, class).await });
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
        self.ahead = Some(Ahead { first, end, read });
    }

    fn check_length(&self, first: u64, end: u64, bytes: Bytes) -> Result<Stored, Error> {
        let (start, stop) = (self.table.chunk_start(first), self.table.chunk_start(end));
        if bytes.len() as u64 != stop - start {
            let at = start + bytes.len() as u64;
            return Err(Error::corrupt(self.table.data.path(), at, "the file ends too early"));
        }
        Ok(Stored { first, end, bytes })
    }

    fn stored_chunk<'s>(&self, n: u64, stored: &'s Stored) -> &'s [u8] {
        let start = self.table.chunk_start(stored.first);
        let range = (self.table.chunk_start(n) - start) as usize..(self.table.chunk_start(n + 1) - start) as usize;
        &stored.bytes[range]
    }

    fn decode_alone(&self, n: u64, stored: &Stored) -> Result<Bytes, Error> {
        let mut out = vec![0; self.table.chunk_content(n)];
        self.table.decode_chunk(n, self.stored_chunk(n, stored), &mut out)?;
        Ok(out.into())
    }

    /// Appends chunk `n` out of the stored ones; without a cache to fill, some more.
    fn decode(&mut self, n: u64) -> Result<(), Error> {
        let Some(stored) = self.stored.take() else { unreachable!("the caller has looked") };
        let result = self.decode_from(n, &stored);
        self.stored = Some(stored);
        result
    }

    fn decode_from(&mut self, n: u64, stored: &Stored) -> Result<(), Error> {
        if self.options.fill_cache {
            let chunk = self.decode_alone(n, stored)?;
            self.table.cached.insert(Kind::Data, n, &chunk);
            self.push(n, chunk);
            return Ok(());
        }
        let length = self.table.chunk_length() as u64;
        let mut own = self.take_rest(n);
        let rest = own.len();
        let mut chunk = n;
        while chunk < stored.end && own.len() - rest < DECODE_AHEAD {
            let at = own.len();
            own.resize(at + self.table.chunk_content(chunk), 0);
            let bytes = self.stored_chunk(chunk, stored);
            if let Err(error) = self.table.decode_chunk(chunk, bytes, &mut own[at..]) {
                // What came before is sound, and may be all that is wanted.
                if chunk == n {
                    return Err(error);
                }
                own.truncate(at);
                break;
            }
            chunk += 1;
        }
        self.run += (chunk - n) * length;
        self.window = Window::Own(own);
        Ok(())
    }

    /// Appends chunk `n`.
    fn push(&mut self, n: u64, chunk: Bytes) {
        self.run += chunk.len() as u64;
        if self.rest().is_empty() {
            let start = n * self.table.chunk_length() as u64;
            self.at = (self.position() - start) as usize;
            self.base = start;
            self.window = Window::Chunk(chunk);
        } else {
            let mut own = self.take_rest(n);
            own.extend_from_slice(&chunk);
            self.window = Window::Own(own);
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
                Window::Own(mut own) => {
                    own.clear();
                    own
                }
                Window::Chunk(_) => Vec::new(),
            };
        }
        let at = std::mem::replace(&mut self.at, 0);
        self.base = place;
        match std::mem::replace(&mut self.window, Window::Own(Vec::new())) {
            Window::Own(mut own) => {
                own.drain(..at);
                own
            }
            Window::Chunk(chunk) => chunk[at..].to_vec(),
        }
    }
}
