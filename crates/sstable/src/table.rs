//! An open sstable. Its small components are in memory; Data.db and Index.db are read through the
//! page cache.
//!
//! Opening checks every component against Checksums.db, if the TOC lists one. Sstables of other
//! databases have none; there, only Data.db is protected by checksums.

use crate::cache::{CachedFile, Kind, PageCache};
use crate::checksums::{CRC_CHUNK, Checksums, CrcFile};
use crate::compression::CompressionInfo;
use crate::data::layout::Layout;
use crate::error::Error;
use crate::filter::Filter;
use crate::generation::{Component, Generation, SstablePath, Version};
use crate::input::{Fault, Input};
use crate::large::LargeData;
use crate::open_files::LazyFile;
use crate::reader::{ReadOptions, Reader};
use crate::statistics::Statistics;
use crate::statistics::header::Header;
use crate::statistics::stats::Stats;
use crate::summary::{Summary, SummaryBuilder};
use bytes::Bytes;
use model::TableSchema;
use model::key::DecoratedKey;
use model::range::{PartitionRange, Slice};
use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;

/// The memory of an open sstable by purpose, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SstableMemory {
    /// The bloom filter.
    pub filter: usize,
    /// The summary.
    pub summary: usize,
    /// The positions of compressed chunks, or the checksums of uncompressed ones.
    pub chunks: usize,
    /// Everything else.
    pub rest: usize,
}

impl SstableMemory {
    /// The sum.
    pub fn total(self) -> usize {
        self.filter + self.summary + self.chunks + self.rest
    }
}

/// An open sstable.
pub struct Sstable {
    pub(crate) place: SstablePath,
    pub(crate) data: LazyFile,
    pub(crate) index: LazyFile,
    pub(crate) data_length: u64,
    pub(crate) content_length: u64,
    pub(crate) index_length: u64,
    pub(crate) chunks: Chunks,
    pub(crate) page_sums: Option<Vec<u32>>,
    pub(crate) summary: Summary,
    pub(crate) header: Header,
    pub(crate) cached: CachedFile,
    /// The CRC32 of the content of Data.db, if Checksums.db has it.
    pub(crate) content_sum: Option<u32>,
    /// The CRC32 of Data.db, if there is a Digest.crc32.
    pub(crate) digest: Option<u32>,
    pub(crate) filter: Option<Filter>,
    stats: Stats,
    cardinality: Option<u64>,
    bloom_fp_chance: f64,
    small_bytes: u64,
    components: Vec<String>,
    large: Option<Box<LargeData>>,
    layout: RefCell<Option<(Rc<TableSchema>, Rc<Layout>)>>,
}

/// How Data.db is divided into chunks.
pub(crate) enum Chunks {
    Compressed(CompressionInfo),
    Plain { chunk: usize, sums: Option<Vec<u32>> },
}

/// A read leaves out cached chunks only if this much content is cached in sequence, in bytes. One
/// long read costs less than two reads around a few cached chunks.
const LEAST_LEFT_OUT: u64 = 64 << 10;
/// The components that are read entirely when an sstable is opened.
const SMALL: [Component; 8] = [
    Component::Toc,
    Component::Checksums,
    Component::CompressionInfo,
    Component::Crc,
    Component::Statistics,
    Component::Filter,
    Component::Summary,
    Component::Digest,
];

/// The files as found on disk. All are requested at once: opening is mostly waiting, and a node
/// opens thousands of sstables.
struct FoundFiles {
    small: Vec<(Component, io::Result<Vec<u8>>)>,
    data_length: io::Result<u64>,
    index_length: io::Result<u64>,
}

impl FoundFiles {
    async fn at(place: &SstablePath) -> FoundFiles {
        let small = SMALL.iter().map(|component| place.path(*component)).collect();
        let large = [Component::Data, Component::Index].iter().map(|component| place.path(*component)).collect();
        let (small, lengths) = rt::fs::read_and_measure(small, large).await;
        let mut lengths = lengths.into_iter();
        let mut length = || lengths.next().unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()));
        FoundFiles { small: SMALL.into_iter().zip(small).collect(), data_length: length(), index_length: length() }
    }

    /// Takes a small component. `None` if it does not exist.
    fn take(&mut self, place: &SstablePath, component: Component) -> Result<Option<Bytes>, Error> {
        let Some(at) = self.small.iter().position(|(own, _)| *own == component) else { return Ok(None) };
        match self.small.swap_remove(at).1 {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Io { path: place.path(component), source }),
        }
    }
}

/// The length of a large component. If it is missing from a sealed sstable, the sstable is damaged.
fn length_of(length: io::Result<u64>, place: &SstablePath, component: Component) -> Result<u64, Error> {
    length.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::corrupt(&place.path(component), 0, "the TOC lists it, but it is missing"),
        _ => Error::Io { path: place.path(component), source: error },
    })
}

/// The small components, checked one by one.
struct Small<'a> {
    place: &'a SstablePath,
    found: FoundFiles,
    listed: &'a [String],
    checksums: Option<&'a Checksums>,
    bytes: u64,
}

impl Small<'_> {
    fn read(&mut self, component: Component) -> Result<Option<Bytes>, Error> {
        if !self.listed.iter().any(|name| name == component.name()) {
            return Ok(None);
        }
        let path = self.place.path(component);
        let Some(bytes) = self.found.take(self.place, component)? else {
            return Err(Error::corrupt(&path, 0, "the TOC lists it, but it is missing"));
        };
        if let Some(checksums) = self.checksums {
            checksums.check(component, &bytes).map_err(|fault| fault.at(&path, 0))?;
        }
        self.bytes += bytes.len() as u64;
        Ok(Some(bytes))
    }

    fn required(&mut self, component: Component) -> Result<Bytes, Error> {
        let found = self.read(component)?;
        found.ok_or_else(|| Error::corrupt(&self.place.path(component), 0, "the TOC does not list it"))
    }
}

impl Sstable {
    /// Opens a sealed sstable that Messina wrote.
    pub async fn open(dir: &Path, generation: Generation, cache: &Rc<PageCache>) -> Result<Rc<Sstable>, Error> {
        Self::open_at(&SstablePath::new(dir, generation), cache).await
    }

    /// Opens a sealed sstable of any supported version.
    pub async fn open_at(place: &SstablePath, cache: &Rc<PageCache>) -> Result<Rc<Sstable>, Error> {
        let toc_path = place.path(Component::Toc);
        let mut found = FoundFiles::at(place).await;
        let Some(toc) = found.take(place, Component::Toc)? else {
            return Err(Error::Io {
                path: toc_path,
                source: io::Error::new(io::ErrorKind::NotFound, "the file is missing"),
            });
        };
        let text = std::str::from_utf8(&toc)
            .map_err(|_| Error::corrupt(&toc_path, 0, "the file is not a list of components"))?;
        let listed: Vec<String> = text.lines().map(str::to_owned).filter(|line| !line.is_empty()).collect();
        let checksums = Self::read_checksums(place, &listed, &mut found)?;
        if let Some(checksums) = &checksums {
            checksums.check(Component::Toc, &toc).map_err(|fault| fault.at(&toc_path, 0))?;
        }
        let data_length = length_of(std::mem::replace(&mut found.data_length, Ok(0)), place, Component::Data)?;
        let index_length = length_of(std::mem::replace(&mut found.index_length, Ok(0)), place, Component::Index)?;
        let bytes = toc.len() as u64;
        let mut small = Small { place, found, listed: &listed, checksums: checksums.as_ref(), bytes };
        let data = LazyFile::new(cache.files(), place.path(Component::Data));
        let index = LazyFile::new(cache.files(), place.path(Component::Index));
        if let Some(checksums) = &checksums {
            for (file, length, wanted) in
                [(&data, data_length, checksums.data_length), (&index, index_length, checksums.index_length)]
            {
                if length != wanted {
                    return Err(Error::corrupt(file.path(), length, format!("the file should have {wanted} bytes")));
                }
            }
        }
        let (chunks, content_length) = Self::read_chunks(&mut small, data_length)?;
        let data_sums = checksums.as_ref().and_then(|checksums| checksums.data);
        if let Some(sums) = &data_sums {
            sums.check(data.path(), data_length, content_length).await?;
        }
        let bytes = small.required(Component::Statistics)?;
        let statistics = Statistics::read(&bytes, place.version, &place.path(Component::Statistics))?;
        let mut filter = None;
        if let Some(bytes) = small.read(Component::Filter)?.filter(|bytes| !bytes.is_empty()) {
            let read = Filter::read(&bytes, place.version);
            filter = Some(read.map_err(|fault| fault.at(&place.path(Component::Filter), 0))?);
        }
        let summary = Self::read_summary(&mut small, index_length).await?;
        let digest = Self::read_digest(&mut small)?;
        let large = Self::read_large(&mut small).await?;
        let small_bytes = small.bytes;
        let page_sums = checksums.map(|checksums| checksums.index_pages);
        Ok(Rc::new(Sstable {
            place: place.clone(),
            data,
            index,
            data_length,
            content_length,
            index_length,
            chunks,
            page_sums,
            content_sum: data_sums.map(|sums| sums.content),
            summary,
            header: statistics.header,
            cached: cache.register(),
            digest,
            filter,
            stats: statistics.stats,
            cardinality: statistics.cardinality,
            bloom_fp_chance: statistics.bloom_fp_chance,
            small_bytes,
            components: listed,
            large: large.map(Box::new),
            layout: RefCell::new(None),
        }))
    }

    fn read_checksums(
        place: &SstablePath,
        listed: &[String],
        found: &mut FoundFiles,
    ) -> Result<Option<Checksums>, Error> {
        let (component, path) = (Component::Checksums, place.path(Component::Checksums));
        let found = found.take(place, component)?;
        match (listed.iter().any(|name| name == component.name()), found) {
            (false, None) => Ok(None),
            // The TOC is damaged, or the file does not belong to this sstable.
            (false, Some(_)) => {
                Err(Error::corrupt(&place.path(Component::Toc), 0, "the TOC lacks Checksums.db, which exists"))
            }
            (true, None) => Err(Error::corrupt(&path, 0, "the TOC lists it, but it is missing")),
            (true, Some(bytes)) => Checksums::read(&bytes).map(Some).map_err(|fault| fault.at(&path, 0)),
        }
    }

    fn read_chunks(small: &mut Small<'_>, data_length: u64) -> Result<(Chunks, u64), Error> {
        let place = small.place;
        if let Some(bytes) = small.read(Component::CompressionInfo)? {
            let path = place.path(Component::CompressionInfo);
            let info = CompressionInfo::read(&bytes, place.version, data_length, &path)?;
            let content = info.content_length;
            return Ok((Chunks::Compressed(info), content));
        }
        let chunks = match small.read(Component::Crc)? {
            None => Chunks::Plain { chunk: CRC_CHUNK, sums: None },
            Some(bytes) => {
                let crc = CrcFile::read(&bytes, data_length);
                let crc = crc.map_err(|fault| fault.at(&place.path(Component::Crc), 0))?;
                Chunks::Plain { chunk: crc.chunk, sums: Some(crc.sums) }
            }
        };
        Ok((chunks, data_length))
    }

    fn read_digest(small: &mut Small<'_>) -> Result<Option<u32>, Error> {
        let Some(bytes) = small.read(Component::Digest)? else { return Ok(None) };
        let parsed = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok());
        let path = small.place.path(Component::Digest);
        parsed.map(Some).ok_or_else(|| Error::corrupt(&path, 0, "the content is not a checksum"))
    }

    /// Reads LargeData.db. It is rare, so it is not read together with the others.
    async fn read_large(small: &mut Small<'_>) -> Result<Option<LargeData>, Error> {
        let component = Component::LargeData;
        if !small.listed.iter().any(|name| name == component.name()) {
            return Ok(None);
        }
        let path = small.place.path(component);
        small.found.small.push((component, rt::fs::read(&path).await));
        let Some(bytes) = small.read(component)? else { return Ok(None) };
        LargeData::read(&bytes).map(Some).map_err(|fault| fault.at(&path, 0))
    }

    /// Reads the summary. Other databases may write none; then it is made from the index.
    async fn read_summary(small: &mut Small<'_>, index_length: u64) -> Result<Summary, Error> {
        let path = small.place.path(Component::Summary);
        if let Some(bytes) = small.read(Component::Summary)? {
            let summary = Summary::read(&bytes).map_err(|fault| fault.at(&path, 0))?;
            let mut last = None;
            for i in 0..summary.len() {
                let position = summary.position(i);
                if position >= index_length || last.is_some_and(|last| last >= position) {
                    return Err(Error::corrupt(&path, 0, "the position of an entry is not valid"));
                }
                last = Some(position);
            }
            return Ok(summary);
        }
        let index_path = small.place.path(Component::Index);
        let index = Bytes::from(rt::fs::read(&index_path).await.map_err(Error::io(&index_path))?);
        let mut builder = SummaryBuilder::new(128);
        let mut input = Input(&index);
        let mut last: &[u8] = &[];
        while !input.0.is_empty() {
            let at = (index.len() - input.0.len()) as u64;
            let mut entry = || -> Result<(), Fault> {
                last = input.bytes16()?;
                input.uvint()?;
                let promoted = input.size()?;
                input.take(promoted)?;
                Ok(())
            };
            entry().map_err(|fault| fault.at(&index_path, at))?;
            builder.add(&index.slice_ref(last), at);
        }
        let bytes = Bytes::from(builder.finish(last));
        Summary::read(&bytes).map_err(|fault| fault.at(&index_path, 0))
    }

    /// The generation, which identifies it within its directory.
    pub fn generation(&self) -> Generation {
        self.place.generation
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.place.dir
    }

    /// Its directory, version and generation.
    pub fn place(&self) -> &SstablePath {
        &self.place
    }

    /// The format's version.
    pub fn version(&self) -> Version {
        self.place.version
    }

    /// Opens its files and keeps them open until it is dropped. Required before the files are
    /// removed from disk, if a reader may still use them.
    pub async fn keep_open(&self) -> Result<(), Error> {
        self.data.keep().await?;
        self.index.keep().await
    }

    /// Whether one of its files is open. Files are opened when they are read, and closed when other
    /// sstables need the descriptors.
    pub fn is_open(&self) -> bool {
        self.data.is_open() || self.index.is_open()
    }

    /// The names of its components, as its TOC lists them.
    pub fn components(&self) -> &[String] {
        &self.components
    }

    /// The large partitions, rows and cells.
    pub fn large(&self) -> Option<&LargeData> {
        self.large.as_deref()
    }

    /// A number that no other sstable open with the same cache has.
    pub fn id(&self) -> u64 {
        self.cached.id()
    }

    /// The first key.
    pub fn first_key(&self) -> &DecoratedKey {
        &self.summary.first
    }

    /// The last key.
    pub fn last_key(&self) -> &DecoratedKey {
        &self.summary.last
    }

    /// The statistics of its contents.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The estimated number of distinct partition keys. `None` if there is no sketch.
    pub fn cardinality(&self) -> Option<u64> {
        self.cardinality
    }

    /// The chance of a false positive for which the filter was sized.
    pub fn bloom_fp_chance(&self) -> f64 {
        self.bloom_fp_chance
    }

    /// The schema at the time of writing.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// A schema that is made from the header alone, for tools; see [`Header::schema`].
    pub fn header_schema(&self, keyspace: &str, table: &str) -> Rc<TableSchema> {
        Rc::new(self.header.schema(keyspace, table))
    }

    /// The length of Data.db on disk, in bytes.
    pub fn data_bytes(&self) -> u64 {
        self.data_length
    }

    /// The length of Data.db before compression, in bytes.
    pub fn content_bytes(&self) -> u64 {
        self.content_length
    }

    /// The length of all components on disk, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.data_length + self.index_length + self.small_bytes
    }

    /// The memory that it holds while it is open, in bytes, without the page cache.
    pub fn memory_bytes(&self) -> usize {
        self.kept().total()
    }

    /// The same memory by purpose.
    pub fn kept(&self) -> SstableMemory {
        let chunks = match &self.chunks {
            Chunks::Compressed(info) => info.offsets.memory_bytes(),
            Chunks::Plain { sums, .. } => sums.as_ref().map_or(0, |sums| sums.len() * 4),
        };
        SstableMemory {
            filter: self.filter.as_ref().map_or(0, Filter::memory_bytes),
            summary: self.summary.memory_bytes(),
            chunks,
            rest: std::mem::size_of::<Sstable>() + self.page_sums.as_ref().map_or(0, |sums| sums.len() * 4) + 8192,
        }
    }

    /// Whether it may have the key, by its first and last key and the filter. No I/O.
    pub fn may_contain(&self, key: &DecoratedKey) -> bool {
        *self.first_key() <= *key
            && *key <= *self.last_key()
            && self.filter.as_ref().is_none_or(|filter| filter.may_contain(model::token::hash128(&key.key)))
    }

    /// Whether it may have a partition in the range, by its first and last key.
    pub fn overlaps(&self, range: &PartitionRange) -> bool {
        use std::cmp::Ordering;
        let (first, last) = (self.first_key(), self.last_key());
        range.end.cmp_key(first.token, &first.key) == Ordering::Greater
            && range.start.cmp_key(last.token, &last.key) == Ordering::Less
    }

    /// A reader of the partitions in `range`, limited to the rows of `slice`.
    pub fn reader(
        self: &Rc<Self>,
        schema: &Rc<TableSchema>,
        range: PartitionRange,
        slice: Rc<Slice>,
        options: ReadOptions,
    ) -> Reader {
        Reader::new(self.clone(), schema.clone(), range, slice, options)
    }

    /// Whether the file can be read as one of this table. The error names the types in the file and
    /// in the table.
    pub fn check_schema(&self, schema: &TableSchema) -> Result<(), String> {
        Layout::new(&self.header, schema).map(drop)
    }

    /// The columns of the file, matched with the columns of a schema version.
    pub(crate) fn layout(&self, schema: &Rc<TableSchema>) -> Result<Rc<Layout>, Error> {
        if let Some((known, layout)) = &*self.layout.borrow()
            && Rc::ptr_eq(known, schema)
        {
            return Ok(layout.clone());
        }
        let layout = Layout::new(&self.header, schema);
        let layout =
            Rc::new(layout.map_err(|why| Error::Unsupported(format!("{}: {why}", self.data.path().display())))?);
        *self.layout.borrow_mut() = Some((schema.clone(), layout.clone()));
        Ok(layout)
    }

    /// The content bytes of every chunk but the last.
    pub(crate) fn chunk_length(&self) -> usize {
        match &self.chunks {
            Chunks::Compressed(info) => info.chunk_length,
            Chunks::Plain { chunk, .. } => *chunk,
        }
    }

    pub(crate) fn chunk_count(&self) -> u64 {
        self.content_length.div_ceil(self.chunk_length() as u64)
    }

    /// The position of the stored bytes of chunk `n`. If `n` is the number of chunks, returns the
    /// end of the file.
    pub(crate) fn chunk_start(&self, n: u64) -> u64 {
        match &self.chunks {
            Chunks::Compressed(info) => info.offsets.get(n as usize),
            Chunks::Plain { chunk, .. } => (n * *chunk as u64).min(self.data_length),
        }
    }

    /// Content bytes of chunk `n`.
    pub(crate) fn chunk_content(&self, n: u64) -> usize {
        let length = self.chunk_length() as u64;
        (self.content_length - n * length).min(length) as usize
    }

    /// The end of a read of chunks from `first`, which is not cached, up to `end` at most. The read
    /// ends before a long run of cached chunks, or before cached chunks at its end. It includes
    /// shorter runs.
    pub(crate) fn end_before_cached(&self, first: u64, end: u64) -> u64 {
        let long = LEAST_LEFT_OUT.div_ceil(self.chunk_length() as u64);
        let mut cached = 0;
        for chunk in first + 1..end {
            match self.cached.has(Kind::Data, chunk) {
                true => cached += 1,
                false if cached >= long => return chunk - cached,
                false => cached = 0,
            }
        }
        end - cached
    }

    /// Checks the stored bytes of chunk `n`, and appends its content to `out`. On an error `out` is
    /// unchanged.
    pub(crate) fn decode_chunk(&self, n: u64, stored: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        let corrupt = |why: &str| Error::corrupt(self.data.path(), self.chunk_start(n), why);
        let length = self.chunk_content(n);
        match &self.chunks {
            Chunks::Plain { sums, .. } => {
                if stored.len() != length {
                    return Err(corrupt("the file ends too early"));
                }
                if sums.as_ref().is_some_and(|sums| sums.get(n as usize) != Some(&crc32fast::hash(stored))) {
                    return Err(corrupt("the checksum of a chunk is wrong"));
                }
                out.extend_from_slice(stored);
            }
            Chunks::Compressed(info) => {
                let (body, sum) = stored.split_last_chunk::<4>().ok_or_else(|| corrupt("the file ends too early"))?;
                if crc32fast::hash(body) != u32::from_be_bytes(*sum) {
                    return Err(corrupt("the checksum of a chunk is wrong"));
                }
                if body.len() >= info.max_compressed {
                    if body.len() != length {
                        return Err(corrupt("the length of an uncompressed chunk is wrong"));
                    }
                    out.extend_from_slice(body);
                } else {
                    let start = out.len();
                    out.resize(start + length, 0);
                    if !info.algorithm.decompress(body, &mut out[start..]) {
                        out.truncate(start);
                        return Err(corrupt("a chunk does not decompress"));
                    }
                }
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Sstable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Sstable").field(&self.place.generation).finish()
    }
}
