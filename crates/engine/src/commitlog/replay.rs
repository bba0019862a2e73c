//! Reading the logs of earlier runs.
//!
//! Each run is read from its first segment to its torn tail. Where the bytes are no record, the
//! rest of the run is searched for record headers. If a header, the manifest, or the file
//! `synced` names a higher position as synced, then durable data is damaged: that is an error.
//! Otherwise the crash tore the log there, and the run ends, even if complete records follow.

use super::error::LogError;
use super::format::{Bad, Image, Kind, Record, SEGMENT_HEADER, SegmentHeader, mutations};
use super::keeper::freed_path;
use super::manifest::{Manifest, segment_path};
use super::mapping::ColumnMapping;
use super::position::Position;
use super::runs::{OldLogs, OldRun};
use super::synced;
use crate::files::NodeDigest;
use bytes::Bytes;
use model::{HostId, SchemaVersion, TableId};
use rt::ShardId;
use rt::hash::HashMap;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// How to replay.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplayOptions {
    /// `commitlog_ignore_corruption`: skip and report damaged or missing records instead of
    /// failing.
    pub ignore_corruption: bool,
    /// The node that the logs belong to: logs of another node are an error. `None` accepts all.
    pub host: Option<HostId>,
}

/// One mutation from a log.
#[derive(Clone, Debug)]
pub struct ReplayedRecord {
    /// Where its record was; the mutations of a group share it.
    pub position: Position,
    /// The shard that logged it.
    pub shard: ShardId,
    /// Its table.
    pub table: TableId,
    /// The schema version it was made with.
    pub schema_version: SchemaVersion,
    /// The encoded mutation, in its own memory.
    pub mutation: Bytes,
    /// The columns of the mutation: the mapping of its schema version, or of another version that
    /// was current when it was logged. A column id has the same meaning in all versions. `None`
    /// only if the mapping was lost to ignored corruption.
    pub mapping: Option<Arc<ColumnMapping>>,
}

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayReport {
    /// Mutations returned.
    pub mutations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Segments read.
    pub segments: u64,
    /// The ends of the runs that were not closed.
    pub tails: Vec<Tail>,
    /// Damaged or missing parts that were skipped because corruption is ignored.
    pub skipped: Vec<Skipped>,
    /// Mutations of unknown tables, which were left out.
    pub unknown: BTreeMap<TableId, u64>,
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The position behind its last good record.
    pub position: Position,
    /// Complete records behind the end that were never known to be durable.
    pub discarded: u64,
}

/// A part that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The file.
    pub file: PathBuf,
    /// The offset of the damage; 0 for an entire file.
    pub offset: u64,
    /// The damage.
    pub why: &'static str,
}

impl ReplayReport {
    /// Adds the result of another shard.
    pub fn merge(&mut self, other: ReplayReport) {
        self.mutations += other.mutations;
        self.bytes += other.bytes;
        self.segments += other.segments;
        self.tails.extend(other.tails);
        self.skipped.extend(other.skipped);
        for (table, mutations) in other.unknown {
            *self.unknown.entry(table).or_default() += mutations;
        }
    }
}

/// A replay that returns one record at a time.
pub struct Replay {
    options: ReplayOptions,
    runs: VecDeque<OldRun>,
    reader: Option<RunReader>,
    ready: VecDeque<ReplayedRecord>,
    report: ReplayReport,
}

/// The run that is being read.
struct RunReader {
    run: OldRun,
    manifest: Manifest,
    /// The position up to which the run is known to be durable, apart from its records.
    synced: Position,
    /// The index in the manifest of the segment after the open one.
    next: usize,
    open: Option<OpenSegment>,
    mappings: Mappings,
}

/// The mappings of a run so far.
#[derive(Default)]
struct Mappings {
    by_version: HashMap<(TableId, SchemaVersion), Arc<ColumnMapping>>,
    latest: HashMap<TableId, Arc<ColumnMapping>>,
}

impl Mappings {
    fn add(&mut self, mapping: ColumnMapping) {
        let mapping = Arc::new(mapping);
        self.latest.insert(mapping.table, mapping.clone());
        self.by_version.insert((mapping.table, mapping.version), mapping);
    }

    fn get(&self, table: TableId, version: SchemaVersion) -> Option<Arc<ColumnMapping>> {
        self.by_version.get(&(table, version)).or_else(|| self.latest.get(&table)).cloned()
    }
}

struct OpenSegment {
    id: u64,
    bytes: Bytes,
    at: usize,
}

impl Replay {
    /// A replay of `logs`, not yet begun.
    pub fn new(logs: &OldLogs, options: ReplayOptions) -> Replay {
        Replay {
            options,
            runs: logs.runs.iter().cloned().collect(),
            reader: None,
            ready: VecDeque::new(),
            report: ReplayReport::default(),
        }
    }

    /// What was replayed so far.
    pub fn into_report(self) -> ReplayReport {
        self.report
    }

    /// The next mutation; `None` at the end.
    #[allow(clippy::should_implement_trait)]
    pub async fn next(&mut self) -> Result<Option<ReplayedRecord>, LogError> {
        loop {
            if let Some(record) = self.ready.pop_front() {
                self.report.mutations += 1;
                self.report.bytes += record.mutation.len() as u64;
                return Ok(Some(record));
            }
            let Some(reader) = &mut self.reader else {
                let Some(run) = self.runs.pop_front() else { return Ok(None) };
                self.reader = self.begin(run).await?;
                continue;
            };
            let Some(open) = &mut reader.open else {
                if !self.open_segment().await? {
                    self.reader = None;
                }
                continue;
            };
            let image = Image { bytes: &open.bytes, segment: open.id };
            match image.record(open.at) {
                Ok(record) => {
                    let at = std::mem::replace(&mut open.at, record.next);
                    if let Err(error) = self.take(at, record) {
                        self.report.skipped.push(skipped_if_ignored(&self.options, error)?);
                    }
                }
                Err(Bad::Newer { what, found, known }) => {
                    return Err(LogError::Newer { file: segment_path(&reader.run.dir, open.id), what, found, known });
                }
                Err(Bad::Damaged(why)) => self.end_or_corruption(why).await?,
            }
        }
    }

    async fn begin(&mut self, run: OldRun) -> Result<Option<RunReader>, LogError> {
        let manifest = match Manifest::read(&run.dir).await {
            Ok(Some(manifest)) if manifest.is_of(self.options.host) => manifest,
            // Nothing is known about what this node logged in a run of this name.
            Ok(Some(_)) => {
                let error = LogError::Foreign(run.dir.join(super::manifest::NAME));
                self.report.skipped.push(skipped_if_ignored(&self.options, error)?);
                return Ok(None);
            }
            other => {
                let error = other.err().unwrap_or_else(|| LogError::Missing(run.dir.join(super::manifest::NAME)));
                self.report.skipped.push(skipped_if_ignored(&self.options, error)?);
                manifest_of_files(&run).await?
            }
        };
        let noted = synced::read(&run.dir, run.run, self.options.host).await?;
        let synced = manifest.synced.max(noted.unwrap_or(Position::MIN));
        Ok(Some(RunReader { run, manifest, synced, next: 0, open: None, mappings: Mappings::default() }))
    }

    /// Opens the next segment of the run. False when there is none.
    async fn open_segment(&mut self) -> Result<bool, LogError> {
        let Some(reader) = &mut self.reader else { return Ok(false) };
        while let Some(&id) = reader.manifest.segments.get(reader.next) {
            reader.next += 1;
            match read_segment(&reader.run, id, self.options.host).await {
                Ok(Some(bytes)) => {
                    self.report.segments += 1;
                    if let Some(error) = cut_off(&reader.run, id, &bytes) {
                        self.report.skipped.push(skipped_if_ignored(&self.options, error)?);
                    }
                    reader.open = Some(OpenSegment { id, bytes, at: SEGMENT_HEADER as usize });
                    return Ok(true);
                }
                Ok(None) => {}
                Err(error) => self.report.skipped.push(skipped_if_ignored(&self.options, error)?),
            }
        }
        Ok(false)
    }

    /// Processes an undamaged record at `at`.
    fn take(&mut self, at: usize, record: Record) -> Result<(), LogError> {
        let Some(RunReader { run, open, mappings, .. }) = &mut self.reader else { return Ok(()) };
        let Some(segment) = open else { return Ok(()) };
        let position = Position { segment: segment.id, offset: at as u32 };
        let malformed =
            |why| LogError::Corrupt { file: segment_path(&run.dir, position.segment), offset: at as u64, why };
        match record.kind {
            Kind::End => *open = None,
            Kind::Mapping => {
                let mapping = ColumnMapping::decode(&segment.bytes[record.body]);
                let mapping = mapping.ok_or(malformed("a column mapping that cannot be read"))?;
                mappings.add(mapping);
            }
            Kind::Mutation | Kind::Group => {
                let bodies = mutations(&segment.bytes, &record).ok_or(malformed("a group that cannot be read"))?;
                for body in bodies {
                    let mutation = Bytes::copy_from_slice(&segment.bytes[body]);
                    let (table, version) = ids_of(&mutation).ok_or(malformed("a mutation without its ids"))?;
                    self.ready.push_back(ReplayedRecord {
                        position,
                        shard: run.shard,
                        table,
                        schema_version: version,
                        mutation,
                        mapping: mappings.get(table, version),
                    });
                }
            }
        }
        Ok(())
    }

    /// Decides whether bytes that are no record are the end of the run, or damage.
    async fn end_or_corruption(&mut self, why: &'static str) -> Result<(), LogError> {
        let Some(reader) = &mut self.reader else { return Ok(()) };
        let Some(open) = &mut reader.open else { return Ok(()) };
        let here = Position { segment: open.id, offset: open.at as u32 };
        let image = Image { bytes: &open.bytes, segment: open.id };
        let (named, mut discarded) = image.named_behind(open.at);
        let mut highest = named.max(Some(reader.synced));
        for &id in &reader.manifest.segments[reader.next..] {
            match read_segment(&reader.run, id, self.options.host).await {
                Ok(Some(bytes)) => {
                    let (named, count) = Image { bytes: &bytes, segment: id }.named_behind(SEGMENT_HEADER as usize);
                    highest = highest.max(named);
                    discarded += count;
                }
                Ok(None) => {}
                Err(error) => self.report.skipped.push(skipped_if_ignored(&self.options, error)?),
            }
        }
        if highest <= Some(here) {
            self.report.tails.push(Tail { position: here, discarded });
            self.reader = None;
            return Ok(());
        }
        let error =
            LogError::Corrupt { file: segment_path(&reader.run.dir, here.segment), offset: here.offset.into(), why };
        self.report.skipped.push(skipped_if_ignored(&self.options, error)?);
        match image.next_header(open.at + 1) {
            Some((at, _)) => open.at = at,
            None => reader.open = None,
        }
        Ok(())
    }
}

/// The part that an error is about, if corruption is ignored; else the error.
fn skipped_if_ignored(options: &ReplayOptions, error: LogError) -> Result<Skipped, LogError> {
    match error {
        LogError::Corrupt { file, offset, why } if options.ignore_corruption => Ok(Skipped { file, offset, why }),
        LogError::Missing(file) if options.ignore_corruption => Ok(Skipped { file, offset: 0, why: "missing" }),
        LogError::Foreign(file) if options.ignore_corruption => Ok(Skipped { file, offset: 0, why: "of another node" }),
        other => Err(other),
    }
}

/// A manifest of the existing files, for a run with a damaged manifest.
async fn manifest_of_files(run: &OldRun) -> Result<Manifest, LogError> {
    let files = rt::fs::read_dir(&run.dir).await.map_err(LogError::io(&run.dir))?;
    let mut segments: Vec<u64> = files.iter().filter_map(|file| super::manifest::segment_of_name(&file.name)).collect();
    segments.sort();
    Ok(Manifest { run: run.run, segments, synced: Position::MIN, closed: false, host: None })
}

/// The bytes of a segment with a valid header; `None` if it was freed.
async fn read_segment(run: &OldRun, id: u64, host: Option<HostId>) -> Result<Option<Bytes>, LogError> {
    let path = segment_path(&run.dir, id);
    let bytes = match rt::fs::read(&path).await {
        Ok(bytes) => Bytes::from(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let freed = freed_path(&run.dir, id);
            if rt::fs::is_there(&freed).await.map_err(LogError::io(&freed))? {
                return Ok(None);
            }
            return Err(LogError::Missing(path));
        }
        Err(error) => return Err(LogError::io(&path)(error)),
    };
    match SegmentHeader::decode(&bytes) {
        Ok(header) if host.is_some_and(|host| !NodeDigest::of(host).accepts(header.node)) => {
            Err(LogError::Foreign(path))
        }
        Ok(header) if header.segment == id && header.run == run.run => Ok(Some(bytes)),
        Ok(_) => Err(LogError::Corrupt { file: path, offset: 0, why: "the header belongs to another segment" }),
        Err(Bad::Damaged(why)) => Err(LogError::Corrupt { file: path, offset: 0, why }),
        Err(Bad::Newer { what, found, known }) => Err(LogError::Newer { file: path, what, found, known }),
    }
}

/// An error if a segment is shorter than at its creation. A segment has its full length before it
/// is used, so a crash cannot be the reason.
fn cut_off(run: &OldRun, id: u64, bytes: &Bytes) -> Option<LogError> {
    let size = SegmentHeader::decode(bytes).ok()?.size;
    let why = "the file is cut off: segments have their full length from the start";
    let short = (bytes.len() as u64) < u64::from(size);
    short.then(|| LogError::Corrupt { file: segment_path(&run.dir, id), offset: bytes.len() as u64, why })
}

/// The table and schema version at the head of an encoded mutation.
fn ids_of(mutation: &[u8]) -> Option<(TableId, SchemaVersion)> {
    let table = mutation.get(1..17)?.try_into().ok()?;
    let version = mutation.get(17..33)?.try_into().ok()?;
    Some((TableId::from_bytes(table), SchemaVersion::from_bytes(version)))
}
