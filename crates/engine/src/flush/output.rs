//! An sstable that is being written by a flush or a start, and the writer's options for a table.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::memtable::Interval;
use crate::table::{Attached, Table};
use model::fragment::Fragment;
use model::options::OptionMap;
use model::schema::TableSchema;
use sstable::{Algorithm, Compression, Generation, Sstable, SstablePath, Writer, WriterOptions};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The longest chunk of a compressed sstable that a table may ask for, in bytes.
const LARGEST_CHUNK: usize = 1 << 20;
impl Engine {
    /// The options with which sstables of a table are written.
    pub(crate) fn writer_options(&self, schema: &TableSchema) -> WriterOptions {
        WriterOptions {
            compression: compression_of(&schema.options.compression),
            bloom_fp_chance: schema.options.bloom_filter_fp_chance,
            min_index_interval: schema.options.min_index_interval.max(1) as u32,
            large: self.large_limits(),
            large_counts: self.large_counts().clone(),
            ..WriterOptions::new(self.config().host_id)
        }
    }
}

/// The compression that a table's options ask for. An empty class means none. An unknown class is
/// the default.
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

    /// Seals and opens the sstable. `None` if nothing was written; then nothing is left on disk.
    pub async fn finish(
        self,
        intervals: &[Interval],
        engine: &Engine,
        table: &Table,
    ) -> Result<Option<Rc<Attached>>, EngineError> {
        let place = self.place();
        let sealed = self.seal(intervals, engine).await;
        if sealed.is_err()
            && let Err(error) = sstable::directory::remove(&place).await
        {
            table.leftovers.not_removed(place, &error);
        }
        sealed
    }

    /// Seals and opens the sstable. On an error a sealed sstable may be left.
    pub async fn seal(self, intervals: &[Interval], engine: &Engine) -> Result<Option<Rc<Attached>>, EngineError> {
        let covered: Vec<_> = intervals.iter().map(|interval| interval.to_stats()).collect();
        let Some(sealed) = self.writer.finish(&covered).await? else { return Ok(None) };
        let sstable = Sstable::open(&self.dir, sealed.generation, engine.cache()).await?;
        Ok(Some(Attached::new(sstable, intervals.to_vec())))
    }

    /// Where it is written.
    pub fn place(&self) -> SstablePath {
        SstablePath::new(&self.dir, self.writer.generation())
    }

    /// Removes the written files.
    pub async fn abandon(self) {
        self.writer.abort().await;
    }
}
