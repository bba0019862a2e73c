//! Writes an sstable, partition by partition in token order.
//!
//! Nothing is visible until the sstable is sealed. Its first file is an empty `TOC.txt.tmp`, which
//! marks it as unfinished. When all components are written and synced, the list of components is
//! written to `TOC.txt.tmp`. Renaming that to `TOC.txt`, and syncing the directory, seals the
//! sstable.
//!
//! A crash leaves either a complete sstable, or files with a `TOC.txt.tmp`, which a start may
//! delete. Files with neither are not the remains of a crash: their `TOC.txt` was lost.
//!
//! Rows are stored as differences from minima in the header. The first fragments are held back
//! until there are enough of them to choose good minima.

mod blocks;
mod files;
mod seal;

pub use seal::{Sealed, Unsealed, seal_all};
pub(crate) use seal::{toc_text, write_over, write_synced};

use crate::compression::{CHUNK_LENGTHS, Compression};
use crate::data::layout::Layout;
use crate::data::{self, marker, row};
use crate::error::Error;
use crate::filter::FilterBuilder;
use crate::generation::{Component, Generation, SstablePath};
use crate::large::{Finder, LargeCounts, LargeLimits};
use crate::statistics::collector::{Collector, Minima};
use crate::statistics::header::Header;
use crate::statistics::sketch::Sketch;
use crate::statistics::stats::LogInterval;
use crate::summary::SummaryBuilder;
use blocks::Blocks;
use files::{DataFile, IndexFile};
use model::fragment::Fragment;
use model::key::{Clustering, ClusteringCut, DecoratedKey, MAX_KEY_BYTES};
use model::row::Row;
use model::time::Tombstone;
use model::types::vint::write_unsigned;
use model::{HostId, TableSchema};
use rt::fs::{IoClass, OpenOptions};
use std::path::Path;
use std::rc::Rc;

/// The options of a new sstable.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// The compression of Data.db; `None` for no compression.
    pub compression: Option<Compression>,
    /// The wanted chance of a false positive of the filter; 1 for no filter.
    pub bloom_fp_chance: f64,
    /// Partitions per entry of the summary.
    pub min_index_interval: u32,
    /// The node that writes it.
    pub host_id: HostId,
    /// The expected number of partitions. It matters only above a quarter of a million.
    pub expected_partitions: u64,
    /// The level in leveled compaction.
    pub level: u32,
    /// The class of its disk writes.
    pub class: IoClass,
    /// The content bytes of a block of the promoted index.
    pub promoted_index_block: usize,
    /// The limits beyond which partitions, rows and cells are large.
    pub large: LargeLimits,
    /// The counters of large partitions, rows and cells.
    pub large_counts: Rc<LargeCounts>,
}

impl WriterOptions {
    /// The defaults of a node: LZ4 in chunks of 4 KiB.
    pub fn new(host_id: HostId) -> Self {
        WriterOptions {
            compression: Some(Compression { algorithm: crate::compression::Algorithm::Lz4, chunk_length: 4096 }),
            bloom_fp_chance: 0.01,
            min_index_interval: 128,
            host_id,
            expected_partitions: 0,
            level: 0,
            class: IoClass::Background,
            promoted_index_block: 64 << 10,
            large: LargeLimits::default(),
            large_counts: Rc::default(),
        }
    }
}

/// Bytes of fragments that are held back to choose minima.
const HELD_BACK: usize = 128 << 10;

/// The writer of one sstable.
pub struct Writer {
    place: SstablePath,
    schema: Rc<TableSchema>,
    options: WriterOptions,
    data: DataFile,
    index: IndexFile,
    summary: SummaryBuilder,
    filter: Option<FilterBuilder>,
    sketch: Sketch,
    collector: Collector,
    blocks: Blocks,
    large: Finder,
    /// The header and layout. `None` until the minima are chosen.
    form: Option<(Header, Layout)>,
    held_back: Vec<Fragment>,
    held_back_weight: usize,
    minima: Minima,
    partition: Option<Partition>,
    first: Option<DecoratedKey>,
    last: Option<DecoratedKey>,
    partitions: u64,
    scratch: Vec<u8>,
    entry: Vec<u8>,
}

/// The partition that is being written.
struct Partition {
    key: DecoratedKey,
    tombstone: Tombstone,
    start: u64,
    /// The bytes up to the first row. Known once the static row is written.
    header: Option<u64>,
    /// The position of the unfiltered before this one.
    previous: u64,
    open: Tombstone,
    rows: u64,
    range_tombstones: u64,
}

/// Creates the mark of an unfinished sstable, then the files that are written while partitions are
/// added. File systems keep the order of names that are created in one directory, so no sync is
/// needed between them.
async fn create_files(place: &SstablePath, options: &WriterOptions) -> Result<(DataFile, IndexFile), Error> {
    let mark = place.path(Component::TemporaryToc);
    drop(rt::fs::open(&mark, &OpenOptions::create_new()).await.map_err(Error::io(&mark))?);
    let data = DataFile::create(&place.path(Component::Data), options.compression, options.class).await?;
    let index = IndexFile::create(&place.path(Component::Index), options.class).await?;
    Ok((data, index))
}

impl Writer {
    /// Creates the files. The directory must exist.
    pub async fn create(
        dir: &Path,
        generation: Generation,
        schema: Rc<TableSchema>,
        options: WriterOptions,
    ) -> Result<Writer, Error> {
        if let Some(Compression { chunk_length, .. }) = options.compression
            && (!CHUNK_LENGTHS.contains(&chunk_length) || !chunk_length.is_power_of_two())
        {
            return Err(Error::Unsupported(format!("compression in chunks of {chunk_length} bytes")));
        }
        let place = SstablePath::new(dir, generation);
        let (data, index) = match create_files(&place, &options).await {
            Ok(files) => files,
            Err(error) => {
                crate::directory::remove_files(&place).await;
                return Err(error);
            }
        };
        Ok(Writer {
            data,
            index,
            summary: SummaryBuilder::new(options.min_index_interval),
            filter: FilterBuilder::new(options.bloom_fp_chance, options.expected_partitions),
            sketch: Sketch::default(),
            collector: Collector::new(schema.order.clone()),
            blocks: Blocks::new(options.promoted_index_block),
            large: Finder::new(options.large, schema.clone(), options.large_counts.clone()),
            form: None,
            held_back: Vec::new(),
            held_back_weight: 0,
            minima: Minima::default(),
            partition: None,
            first: None,
            last: None,
            partitions: 0,
            scratch: Vec::new(),
            entry: Vec::new(),
            place,
            schema,
            options,
        })
    }

    /// The generation of the new sstable.
    pub fn generation(&self) -> Generation {
        self.place.generation
    }

    /// The approximate size of Data.db and Index.db so far, in bytes.
    pub fn bytes_written(&self) -> u64 {
        self.data.stored() + self.index.position() + self.held_back_weight as u64
    }

    /// The number of partitions so far.
    pub fn partitions(&self) -> u64 {
        self.partitions
    }

    /// The memory that it holds, about, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.held_back_weight
            + self.blocks.memory_bytes()
            + self.summary.memory_bytes()
            + self.filter.as_ref().map_or(0, FilterBuilder::memory_bytes)
            + (1 << 20)
    }

    /// Appends the next fragment. Partitions must be complete and in token order, as every reader
    /// yields them.
    pub async fn push(&mut self, fragment: Fragment) -> Result<(), Error> {
        if let Fragment::PartitionStart { .. } = &fragment {
            self.partitions += 1;
        }
        if self.form.is_some() {
            return self.encode(fragment).await;
        }
        debug_assert!(self.last.is_none(), "no partition is encoded before the minima are chosen");
        match &fragment {
            Fragment::PartitionStart { tombstone, .. } | Fragment::Change { tombstone, .. } => {
                self.minima.tombstone(*tombstone);
            }
            Fragment::Static(row) | Fragment::Row { row, .. } => self.minima.row(row),
            Fragment::PartitionEnd => {}
        }
        self.held_back_weight += fragment.weight();
        self.held_back.push(fragment);
        if self.held_back_weight < HELD_BACK { Ok(()) } else { self.release().await }
    }

    /// Chooses the minima, and encodes the fragments that were held back.
    async fn release(&mut self) -> Result<(), Error> {
        let (timestamp, deletion_time, ttl) = self.minima.values();
        let header = Header::new(&self.schema, timestamp, deletion_time, ttl);
        let layout = Layout::new(&header, &self.schema).map_err(Error::Unsupported)?;
        self.form = Some((header, layout));
        self.held_back_weight = 0;
        for fragment in std::mem::take(&mut self.held_back) {
            self.encode(fragment).await?;
        }
        Ok(())
    }

    async fn encode(&mut self, fragment: Fragment) -> Result<(), Error> {
        match fragment {
            Fragment::PartitionStart { key, tombstone } => self.start_partition(key, tombstone)?,
            Fragment::Static(row) => self.static_row(Some(&row))?,
            Fragment::Row { key, row } => self.row(&key, &row)?,
            Fragment::Change { at, tombstone } => self.change(&at, tombstone)?,
            Fragment::PartitionEnd => self.end_partition().await?,
        }
        self.data.drain().await
    }

    fn refused(&self, why: String) -> Error {
        Error::Unsupported(format!("{}.{}: {why}", self.schema.keyspace, self.schema.name))
    }

    fn start_partition(&mut self, key: DecoratedKey, tombstone: Tombstone) -> Result<(), Error> {
        assert!(self.partition.is_none(), "the partition before has ended");
        assert!(self.last.as_ref().is_none_or(|last| *last < key), "partitions come in order");
        if key.key.len() > MAX_KEY_BYTES {
            let len = key.key.len();
            return Err(
                self.refused(format!("a partition key has {len} bytes, and at most {MAX_KEY_BYTES} fit the format"))
            );
        }
        debug_assert_eq!(
            key.token,
            model::token::of_key(&key.key),
            "partitions are sorted by the tokens of their keys"
        );
        debug_assert!(self.first.is_none() || self.last.is_some(), "an sstable with a first key has a last one");
        let start = self.data.position();
        data::partition::write(&key, tombstone, self.data.content());
        self.collector.start_partition(tombstone);
        self.blocks.start();
        let open = Tombstone::LIVE;
        self.partition = Some(Partition {
            key,
            tombstone,
            start,
            header: None,
            previous: start,
            open,
            rows: 0,
            range_tombstones: 0,
        });
        Ok(())
    }

    /// Writes the static row, which every partition has if the table has static columns.
    fn static_row(&mut self, row: Option<&Row>) -> Result<(), Error> {
        let (Some(partition), Some((_, layout))) = (&mut self.partition, &self.form) else {
            unreachable!("a static row is inside a partition")
        };
        assert!(partition.header.is_none(), "a static row comes first");
        let start = self.data.position();
        let out = self.data.content();
        if !layout.statics.targets.is_empty() {
            let mut written = false;
            if let Some(row) = row {
                let source = row::Source { row, key: None, previous: 0 };
                let result = row::write(&source, layout, &mut self.scratch, out, &mut self.collector);
                written = result.map_err(|why| self.refused(why))?;
            }
            if !written {
                let (Some((_, layout)), out) = (&self.form, self.data.content()) else { unreachable!("chosen above") };
                row::write_empty_static(layout, out);
            }
        }
        let end = self.data.position();
        if let Some(partition) = &mut self.partition {
            partition.header = Some(end - partition.start);
            if let Some(row) = row {
                self.large.row(&partition.key, None, row, end - start);
            }
        }
        Ok(())
    }

    fn end_header(&mut self) -> Result<(), Error> {
        match &self.partition {
            Some(Partition { header: None, .. }) => self.static_row(None),
            Some(_) => Ok(()),
            None => unreachable!("rows are inside a partition"),
        }
    }

    fn row(&mut self, key: &Clustering, row: &Row) -> Result<(), Error> {
        self.end_header()?;
        let start = self.data.position();
        let (Some(partition), Some((_, layout))) = (&mut self.partition, &self.form) else {
            unreachable!("rows are inside a partition")
        };
        let source = row::Source { row, key: Some(&key.0), previous: start - partition.previous };
        let result = row::write(&source, layout, &mut self.scratch, self.data.content(), &mut self.collector);
        match result {
            Ok(false) => return Ok(()),
            Ok(true) => {}
            Err(why) => return Err(self.refused(why)),
        }
        partition.previous = start;
        partition.rows += 1;
        self.collector.row_at(key);
        let end = self.data.position();
        self.large.row(&partition.key, Some(key), row, end - start);
        let within = (start - partition.start, end - partition.start);
        self.blocks.unfiltered(marker::CLUSTERING, key, within, partition.open, &layout.clustering);
        Ok(())
    }

    fn change(&mut self, at: &ClusteringCut, to: Tombstone) -> Result<(), Error> {
        self.end_header()?;
        let start = self.data.position();
        let (Some(partition), Some((_, layout))) = (&mut self.partition, &self.form) else {
            unreachable!("changes of range tombstones are inside a partition")
        };
        let from = std::mem::replace(&mut partition.open, to);
        if from == to || (from.is_live() && to.is_live()) {
            return Ok(());
        }
        let previous = start - partition.previous;
        let kind = match marker::write(at, from, to, layout, previous, self.data.content()) {
            Ok(kind) => kind,
            Err(i) => return Err(self.refused(format!("clustering value {i} has a wrong length"))),
        };
        partition.previous = start;
        partition.range_tombstones += u64::from(!to.is_live());
        self.collector.marker_at(at, from, to);
        let within = (start - partition.start, self.data.position() - partition.start);
        self.blocks.unfiltered(kind, &at.prefix, within, to, &layout.clustering);
        Ok(())
    }

    async fn end_partition(&mut self) -> Result<(), Error> {
        self.end_header()?;
        self.data.content().push(data::flags::END_OF_PARTITION);
        let end = self.data.position();
        let (Some(partition), Some((_, layout))) = (self.partition.take(), &self.form) else {
            unreachable!("a partition began")
        };
        assert!(partition.open.is_live(), "no range deletion is open at the end of a partition");
        let Partition { key, tombstone, start, header, rows, range_tombstones, .. } = partition;
        debug_assert!(header.is_some_and(|header| start + header < end), "a partition has a header and an end");
        self.large.partition(&key, end - start, rows, range_tombstones);
        let promoted = self.blocks.finish(end - start, header.unwrap_or(0), tombstone, &layout.clustering);
        let position = self.index.position();
        debug_assert!(self.first.is_none() || position > 0, "index entries follow each other");
        self.entry.clear();
        self.entry.extend_from_slice(&(key.key.len() as u16).to_be_bytes());
        self.entry.extend_from_slice(&key.key);
        write_unsigned(start, &mut self.entry);
        write_unsigned(promoted.len() as u64, &mut self.entry);
        self.entry.extend_from_slice(&promoted);
        self.index.append(&self.entry).await?;
        self.collector.end_partition(end - start);
        self.summary.add(&key.key, position);
        if let Some(filter) = &mut self.filter {
            filter.add(&key.key);
        }
        self.sketch.add(&key.key);
        if self.first.is_none() {
            self.first = Some(key.clone());
        }
        self.last = Some(key);
        Ok(())
    }

    /// Finishes and seals the sstable. `None`, and no files, if there was no partition.
    pub async fn finish(self, intervals: &[LogInterval]) -> Result<Option<Sealed>, Error> {
        match self.finish_unsealed(intervals).await? {
            None => Ok(None),
            Some(unsealed) => {
                let mut sealed = seal_all(vec![unsealed]).await?;
                Ok(sealed.pop())
            }
        }
    }

    /// Writes and syncs every component, but does not seal. `None`, and no files, if there was no
    /// partition. On an error the files are removed.
    pub async fn finish_unsealed(mut self, intervals: &[LogInterval]) -> Result<Option<Unsealed>, Error> {
        assert!(
            self.held_back.last().is_none_or(|last| *last == Fragment::PartitionEnd) && self.partition.is_none(),
            "the last partition has ended"
        );
        if self.partitions == 0 {
            self.abort().await;
            return Ok(None);
        }
        if self.form.is_none()
            && let Err(error) = self.release().await
        {
            self.abort().await;
            return Err(error);
        }
        let place = self.place.clone();
        let result = seal::components(self, intervals).await;
        if result.is_err() {
            crate::directory::remove_files(&place).await;
        }
        result.map(Some)
    }

    /// Removes the files.
    pub async fn abort(self) {
        let place = self.place.clone();
        drop(self);
        crate::directory::remove_files(&place).await;
    }
}
