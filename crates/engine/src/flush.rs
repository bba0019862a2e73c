//! Flushing: a sealed memtable becomes an sstable, then the log lets go of its records.
//!
//! Order of a flush: write and seal the sstable (its statistics name the log interval it covers); in one step attach it and
//! take the memtable away; then tell the log. A crash between any two of them repeats work and loses nothing.
//! Memory pressure flushes the tablet that frees most; a full log flushes the tablets that hold its oldest segments.

use crate::config::RETRY_AFTER;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::memtable::{Interval, Memtable, MemtableSource};
use crate::metrics::{Running, Writing, add};
use crate::slices::Slices;
use crate::sstable_set::Attached;
use crate::table::Table;
use crate::tablet::Tablet;
use model::TableId;
use model::fragment::Fragment;
use model::options::OptionMap;
use model::range::{PartitionRange, Slice};
use model::schema::TableSchema;
use rt::task::Group;
use rt::time::Duration;
use sstable::{Algorithm, Component, Compression, Generation, LARGE, Sstable, SstablePath, Writer, WriterOptions};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The longest chunk of a compressed sstable that a table may ask for, in bytes.
const LARGEST_CHUNK: usize = 1 << 20;
/// Fragments are handed to the writer in buffers of about this many bytes.
const BUFFER_BYTES: usize = 64 << 10;

impl Engine {
    /// Flushes what is in the memtables of a table, or of all tables, when called.
    pub async fn flush(&self, table: Option<TableId>) -> Result<(), EngineError> {
        let tables = match table {
            Some(id) => vec![self.table_or_error(id)?],
            None => self.all_tables(),
        };
        for table in &tables {
            for tablet in table.tablets().iter() {
                self.flush_tablet(table, tablet).await?;
            }
        }
        Ok(())
    }

    /// Flushes all memtables of the shard, also after an error. False if one could not be flushed.
    pub(crate) async fn flush_all_tablets(&self) -> bool {
        let mut all = true;
        for table in self.all_tables() {
            for tablet in table.tablets().iter() {
                all &= self.flush_tablet(&table, tablet).await.is_ok();
            }
        }
        all
    }

    /// Flushes what is in a tablet's memtables when called. Goes on when the caller goes away: a sealed sstable that is not
    /// attached must not stay behind, for a restart would find it.
    pub(crate) async fn flush_tablet(&self, table: &Rc<Table>, tablet: &Rc<Tablet>) -> Result<(), EngineError> {
        tablet.seal();
        if !tablet.is_flushing() {
            return Ok(());
        }
        let (table, tablet) = (table.clone(), tablet.clone());
        self.detached(|engine| async move { engine.flush_sealed(&table, &tablet).await }).await
    }

    async fn flush_sealed(&self, table: &Rc<Table>, tablet: &Rc<Tablet>) -> Result<(), EngineError> {
        let Some(_working) = table.work.enter() else { return Err(EngineError::Cancelled) };
        let Ok(_turn) = tablet.flush_turn.acquire().await else { return Err(EngineError::Cancelled) };
        let _running = Running::new(&self.counters().flushes_running);
        self.compactions().wake_share();
        while let Some(memtable) = tablet.oldest_sealed() {
            let written = rt::task::in_group(Group::Maintenance, self.write_memtable(table, &memtable)).await;
            match written {
                Ok(sstable) => {
                    add(&self.counters().flushes, 1);
                    add(&table.done.flushes, 1);
                    add(&self.counters().flushed_bytes, sstable.as_ref().map_or(0, |own| own.sstable.total_bytes()));
                    tablet.failed_flushes.set(0);
                    self.flushes_succeed();
                    let logged = memtable.logged();
                    tablet.attach_flushed(&memtable, sstable);
                    if let Some(interval) = logged {
                        self.log().clean(tablet.slot, interval.last);
                    }
                    self.compactions().wake();
                }
                Err(error) if error.is_out_of_files() && self.cache().files().give_back() > 0 => {
                    tracing::warn!(table = %table.schema().name, %error, "a flush is tried again with fewer sstables open");
                }
                Err(error) => {
                    add(&self.counters().flush_failures, 1);
                    tablet.failed_flushes.set(tablet.failed_flushes.get() + 1);
                    self.report_failed_flush(table, tablet, &error);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// A flush that failed for lack of disk space or descriptors makes full memtables and a full log refuse writes until a flush succeeds.
    fn report_failed_flush(&self, table: &Table, tablet: &Tablet, error: &EngineError) {
        let (name, tablet) = (&table.schema().name, tablet.id);
        if !error.may_pass() {
            tracing::error!(table = %name, tablet, %error, "a flush failed");
        } else if self.pool().flushes_blocked() {
            tracing::debug!(table = %name, tablet, %error, "a flush failed again");
        } else {
            let shard = self.config().shard.0;
            tracing::error!(
                shard, table = %name, tablet, %error,
                "a flush failed; when memtables or the commitlog are full, writes are refused until a flush succeeds"
            );
            self.pool().set_flushes_blocked(true);
            self.log().set_flushes_blocked(true);
        }
    }

    fn flushes_succeed(&self) {
        if self.pool().flushes_blocked() {
            tracing::warn!(shard = self.config().shard.0, "flushes succeed again");
            self.pool().set_flushes_blocked(false);
            self.log().set_flushes_blocked(false);
        }
    }

    /// Writes one memtable to a sealed sstable.
    async fn write_memtable(
        &self,
        table: &Table,
        memtable: &Rc<Memtable>,
    ) -> Result<Option<Rc<Attached>>, EngineError> {
        let schema = table.schema();
        let slices = Slices::new(&schema, Rc::new(Slice::full()));
        let mut source = MemtableSource::new(memtable.clone(), schema.clone(), slices, PartitionRange::FULL);
        let options = WriterOptions { expected_partitions: memtable.len() as u64, ..self.writer_options(&schema) };
        self.make_directory(table).await?;
        let _writing = Writing::new(self.counters());
        let mut out = Output::create(&table.dir, schema, options).await?;
        let mut buffer = VecDeque::new();
        let job = self.large_jobs().next_id(None);
        loop {
            let more = source.fill(&mut buffer, BUFFER_BYTES);
            // The writer has a large row once more, in the form of the file.
            let large: usize = buffer.iter().map(Fragment::weight).filter(|weight| *weight >= LARGE).sum();
            let _held = match large {
                0 => None,
                large => Some(self.large_jobs().enter(job, large).await),
            };
            if let Err(error) = out.write(&mut buffer).await {
                out.abandon().await;
                return Err(error);
            }
            if !more {
                break;
            }
            rt::task::maybe_yield().await;
        }
        let intervals: Vec<Interval> = memtable.logged().into_iter().collect();
        out.finish(&intervals, self, table).await
    }

    /// Flushes whenever memtables hold more than they should. Runs for the engine's life.
    pub(crate) async fn watch_memory(&self) {
        loop {
            self.pool().flush.notified().await;
            while self.pool().wants_flush() {
                let Some((table, tablet)) = self.largest_memtable() else {
                    // All of it is being flushed already, by others.
                    rt::time::sleep(Duration::from_millis(1)).await;
                    continue;
                };
                if self.flush_tablet(&table, &tablet).await.is_err() {
                    rt::time::sleep(RETRY_AFTER).await;
                }
            }
        }
    }

    /// The tablet whose flush frees most; those whose flushes fail come last.
    fn largest_memtable(&self) -> Option<(Rc<Table>, Rc<Tablet>)> {
        let mut best = None;
        let mut best_rank = (std::cmp::Reverse(u32::MAX), 0);
        for table in self.all_tables() {
            for tablet in table.tablets().iter() {
                let rank = (std::cmp::Reverse(tablet.failed_flushes.get()), tablet.memtable_bytes());
                if rank.1 > 0 && (best.is_none() || rank > best_rank) {
                    best_rank = rank;
                    best = Some((table.clone(), tablet.clone()));
                }
            }
        }
        best
    }

    /// Flushes the tablets that hold up the log, when it is large. Runs for the engine's life.
    pub(crate) async fn watch_log(&self, every: Duration) {
        loop {
            // The log tells when it begins a segment; a look now and then catches what was dirty at that moment.
            let _ = rt::time::timeout(every, self.log().pressure()).await;
            while self.log().wants_flush() {
                let slots = self.log().oldest_dirty_slots();
                if slots.is_empty() {
                    break;
                }
                let dirty = slots.len();
                let slots = self.carry_small(slots).await;
                let mut flushed = slots.len() < dirty;
                for slot in slots {
                    match self.tablet_of_slot(slot) {
                        Some((table, tablet)) => flushed |= self.flush_tablet(&table, &tablet).await.is_ok(),
                        // Its table was dropped meanwhile.
                        None => {
                            self.log().clean(slot, crate::commitlog::Position::MAX);
                            flushed = true;
                        }
                    }
                }
                if !flushed {
                    rt::time::sleep(RETRY_AFTER).await;
                }
            }
        }
    }
}

/// The compression that a table's options ask for. An empty class means none; a class that is not known is the default.
pub(crate) fn compression_of(options: &OptionMap) -> Option<Compression> {
    if options.is_empty() {
        return None;
    }
    let class = options.get("sstable_compression").or_else(|| options.get("class"));
    let class = class.map_or("LZ4Compressor", String::as_str);
    let enabled = options.get("enabled").is_none_or(|text| !text.eq_ignore_ascii_case("false"));
    if class.is_empty() || !enabled {
        return None;
    }
    let algorithm = match class.rsplit('.').next() {
        Some("SnappyCompressor") => Algorithm::Snappy,
        Some("DeflateCompressor") => Algorithm::Deflate,
        Some("ZstdCompressor" | "ZstdWithDictsCompressor") => Algorithm::Zstd,
        _ => Algorithm::Lz4,
    };
    let kilobytes = options.get("chunk_length_in_kb").or_else(|| options.get("chunk_length_kb"));
    let length = kilobytes.and_then(|text| text.trim().parse::<usize>().ok()).and_then(|n| n.checked_mul(1024));
    let fits = |n: &usize| n.is_power_of_two() && *n <= LARGEST_CHUNK;
    Some(Compression { algorithm, chunk_length: length.filter(fits).unwrap_or(4096) })
}

/// An sstable being written.
pub(crate) struct Output {
    writer: Writer,
    dir: PathBuf,
}

impl Output {
    pub async fn create(dir: &Path, schema: Rc<TableSchema>, options: WriterOptions) -> Result<Self, EngineError> {
        let writer = Writer::create(dir, Generation::fresh(), schema, options).await?;
        Ok(Output { writer, dir: dir.to_path_buf() })
    }

    /// Writes all fragments of the buffer.
    pub async fn write(&mut self, buffer: &mut VecDeque<Fragment>) -> Result<(), EngineError> {
        while let Some(fragment) = buffer.pop_front() {
            self.writer.push(fragment).await?;
        }
        Ok(())
    }

    /// Seals and opens it; `None` if nothing was written, and then nothing is left on disk.
    pub async fn finish(
        self,
        intervals: &[Interval],
        engine: &Engine,
        table: &Table,
    ) -> Result<Option<Rc<Attached>>, EngineError> {
        let place = SstablePath::new(&self.dir, self.writer.generation());
        let sealed = self.seal(intervals, engine).await;
        if sealed.is_err()
            && let Err(error) = sstable::directory::remove(&place).await
        {
            // It may be sealed on disk: a restart would find it, so nothing that covers its data may be purged in this run.
            tracing::error!(generation = %place.generation, %error, "an sstable that failed stays behind");
            table.unreadable.borrow_mut().push(place.path(Component::Data));
        }
        sealed
    }

    /// Seals and opens it. On an error a sealed sstable may be left.
    pub async fn seal(self, intervals: &[Interval], engine: &Engine) -> Result<Option<Rc<Attached>>, EngineError> {
        let covered: Vec<_> = intervals.iter().map(|interval| interval.to_stats()).collect();
        let Some(sealed) = self.writer.finish(&covered).await? else { return Ok(None) };
        let sstable = Sstable::open(&self.dir, sealed.generation, engine.cache()).await?;
        Ok(Some(Attached::new(sstable, intervals.to_vec())))
    }

    /// Gives up; nothing is left on disk.
    pub async fn abandon(self) {
        self.writer.abort().await;
    }
}
