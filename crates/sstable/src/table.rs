//! An open sstable: its small components in memory, checked; its data and index behind the page cache.
//!
//! Opening checks every component against Checksums.db, if the TOC lists one. Files from elsewhere have none: there only Data.db
//! is protected.

use crate::cache::{CachedFile, PageCache};
use crate::checksums::{CRC_CHUNK, Checksums, CrcFile};
use crate::compression::CompressionInfo;
use crate::data::layout::Layout;
use crate::error::Error;
use crate::filter::Filter;
use crate::generation::{Component, Generation, Place, Version};
use crate::input::{Fault, Input};
use crate::reader::{ReadOptions, Reader};
use crate::statistics::Statistics;
use crate::statistics::header::Header;
use crate::statistics::stats::Stats;
use crate::summary::{Summary, SummaryBuilder};
use bytes::Bytes;
use model::TableSchema;
use model::key::DecoratedKey;
use model::range::{PartitionRange, Slice};
use rt::fs::{File, OpenOptions};
use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;

/// See the module.
pub struct Sstable {
    pub(crate) place: Place,
    pub(crate) data: File,
    pub(crate) index: File,
    pub(crate) data_length: u64,
    pub(crate) content_length: u64,
    pub(crate) index_length: u64,
    pub(crate) chunks: Chunks,
    pub(crate) page_sums: Option<Vec<u32>>,
    pub(crate) summary: Summary,
    pub(crate) header: Header,
    pub(crate) cached: CachedFile,
    /// CRC32 of Data.db, if there is a Digest.crc32.
    pub(crate) digest: Option<u32>,
    filter: Option<Filter>,
    stats: Stats,
    cardinality: Option<u64>,
    small_bytes: u64,
    components: Vec<String>,
    layout: RefCell<Option<(Rc<TableSchema>, Rc<Layout>)>>,
}

/// How Data.db is cut.
pub(crate) enum Chunks {
    Compressed(CompressionInfo),
    Plain { chunk: usize, sums: Option<Vec<u32>> },
}

/// Reads a small component whole; `None` if it is not there.
async fn read_small(place: &Place, component: Component) -> Result<Option<Bytes>, Error> {
    match rt::fs::read(&place.path(component)).await {
        Ok(bytes) => Ok(Some(bytes.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The small components, each checked.
struct Small<'a> {
    place: &'a Place,
    listed: &'a [String],
    checksums: Option<&'a Checksums>,
    bytes: u64,
}

impl Small<'_> {
    async fn read(&mut self, component: Component) -> Result<Option<Bytes>, Error> {
        if !self.listed.iter().any(|name| name == component.name()) {
            return Ok(None);
        }
        let path = self.place.path(component);
        let Some(bytes) = read_small(self.place, component).await? else {
            return Err(Error::corrupt(&path, 0, "the TOC lists it, but it is missing"));
        };
        if let Some(checksums) = self.checksums {
            checksums.check(component, &bytes).map_err(|fault| fault.at(&path, 0))?;
        }
        self.bytes += bytes.len() as u64;
        Ok(Some(bytes))
    }

    async fn required(&mut self, component: Component) -> Result<Bytes, Error> {
        let found = self.read(component).await?;
        found.ok_or_else(|| Error::corrupt(&self.place.path(component), 0, "the TOC does not list it"))
    }
}

impl Sstable {
    /// Opens a sealed sstable that Messina wrote.
    pub async fn open(dir: &Path, generation: Generation, cache: &Rc<PageCache>) -> Result<Rc<Sstable>, Error> {
        Self::open_at(&Place::new(dir, generation), cache).await
    }

    /// Opens a sealed sstable of any version that can be read.
    pub async fn open_at(place: &Place, cache: &Rc<PageCache>) -> Result<Rc<Sstable>, Error> {
        let toc_path = place.path(Component::Toc);
        let Some(toc) = read_small(place, Component::Toc).await? else {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("{} is missing", toc_path.display())).into());
        };
        let text = std::str::from_utf8(&toc).map_err(|_| Error::corrupt(&toc_path, 0, "not a list of components"))?;
        let listed: Vec<String> = text.lines().map(str::to_owned).filter(|line| !line.is_empty()).collect();
        let checksums = Self::read_checksums(place, &listed).await?;
        if let Some(checksums) = &checksums {
            checksums.check(Component::Toc, &toc).map_err(|fault| fault.at(&toc_path, 0))?;
        }
        let mut small = Small { place, listed: &listed, checksums: checksums.as_ref(), bytes: toc.len() as u64 };

        let data_path = place.path(Component::Data);
        let data = rt::fs::open(&data_path, &OpenOptions::read_direct()).await?;
        let index = rt::fs::open(&place.path(Component::Index), &OpenOptions::read_direct()).await?;
        let (data_length, index_length) = (data.len().await?, index.len().await?);
        if let Some(checksums) = &checksums {
            for (file, length, wanted) in
                [(&data, data_length, checksums.data_length), (&index, index_length, checksums.index_length)]
            {
                if length != wanted {
                    return Err(Error::corrupt(file.path(), length, format!("the file should have {wanted} bytes")));
                }
            }
        }
        let (chunks, content_length) = Self::read_chunks(&mut small, data_length).await?;
        let bytes = small.required(Component::Statistics).await?;
        let statistics = Statistics::read(&bytes, place.version, &place.path(Component::Statistics))?;
        let mut filter = None;
        if let Some(bytes) = small.read(Component::Filter).await?.filter(|bytes| !bytes.is_empty()) {
            let read = Filter::read(&bytes, place.version);
            filter = Some(read.map_err(|fault| fault.at(&place.path(Component::Filter), 0))?);
        }
        let summary = Self::read_summary(&mut small, index_length).await?;
        let digest = Self::read_digest(&mut small).await?;
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
            summary,
            header: statistics.header,
            cached: cache.register(),
            digest,
            filter,
            stats: statistics.stats,
            cardinality: statistics.cardinality,
            small_bytes,
            components: listed,
            layout: RefCell::new(None),
        }))
    }

    async fn read_checksums(place: &Place, listed: &[String]) -> Result<Option<Checksums>, Error> {
        let (component, path) = (Component::Checksums, place.path(Component::Checksums));
        let found = read_small(place, component).await?;
        match (listed.iter().any(|name| name == component.name()), found) {
            (false, None) => Ok(None),
            // The list itself is damaged, or somebody left the file here.
            (false, Some(_)) => {
                Err(Error::corrupt(&place.path(Component::Toc), 0, "does not list Checksums.db, which is there"))
            }
            (true, None) => Err(Error::corrupt(&path, 0, "the TOC lists it, but it is missing")),
            (true, Some(bytes)) => Checksums::read(&bytes).map(Some).map_err(|fault| fault.at(&path, 0)),
        }
    }

    async fn read_chunks(small: &mut Small<'_>, data_length: u64) -> Result<(Chunks, u64), Error> {
        let place = small.place;
        if let Some(bytes) = small.read(Component::CompressionInfo).await? {
            let path = place.path(Component::CompressionInfo);
            let info = CompressionInfo::read(&bytes, place.version, data_length, &path)?;
            let content = info.content_length;
            return Ok((Chunks::Compressed(info), content));
        }
        let chunks = match small.read(Component::Crc).await? {
            None => Chunks::Plain { chunk: CRC_CHUNK, sums: None },
            Some(bytes) => {
                let crc = CrcFile::read(&bytes, data_length);
                let crc = crc.map_err(|fault| fault.at(&place.path(Component::Crc), 0))?;
                Chunks::Plain { chunk: crc.chunk, sums: Some(crc.sums) }
            }
        };
        Ok((chunks, data_length))
    }

    async fn read_digest(small: &mut Small<'_>) -> Result<Option<u32>, Error> {
        let Some(bytes) = small.read(Component::Digest).await? else { return Ok(None) };
        let parsed = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok());
        let path = small.place.path(Component::Digest);
        parsed.map(Some).ok_or_else(|| Error::corrupt(&path, 0, "not a checksum"))
    }

    /// The summary; files from elsewhere may lack it, then it is made from the index.
    async fn read_summary(small: &mut Small<'_>, index_length: u64) -> Result<Summary, Error> {
        let path = small.place.path(Component::Summary);
        if let Some(bytes) = small.read(Component::Summary).await? {
            let summary = Summary::read(&bytes).map_err(|fault| fault.at(&path, 0))?;
            let mut last = None;
            for i in 0..summary.len() {
                let position = summary.position(i);
                if position >= index_length || last.is_some_and(|last| last >= position) {
                    return Err(Error::corrupt(&path, 0, "a place beyond the index"));
                }
                last = Some(position);
            }
            return Ok(summary);
        }
        let index_path = small.place.path(Component::Index);
        let index = Bytes::from(rt::fs::read(&index_path).await?);
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

    /// Which sstable of its directory it is.
    pub fn generation(&self) -> Generation {
        self.place.generation
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.place.dir
    }

    /// Its place: directory, version, generation.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The format's version.
    pub fn version(&self) -> Version {
        self.place.version
    }

    /// The names of its components, as its TOC lists them.
    pub fn components(&self) -> &[String] {
        &self.components
    }

    /// A number that no other sstable has that is open with the same cache.
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

    /// What is known of its contents.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// About how many distinct partition keys, from the sketch; `None` if there is none.
    pub fn cardinality(&self) -> Option<u64> {
        self.cardinality
    }

    /// The schema as of writing.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// A schema made from the header alone, for tools; see [`Header::schema`].
    pub fn header_schema(&self, keyspace: &str, table: &str) -> Rc<TableSchema> {
        Rc::new(self.header.schema(keyspace, table))
    }

    /// Length of Data.db on disk.
    pub fn data_bytes(&self) -> u64 {
        self.data_length
    }

    /// Length of Data.db's content, before compression.
    pub fn content_bytes(&self) -> u64 {
        self.content_length
    }

    /// Length of all components on disk.
    pub fn total_bytes(&self) -> u64 {
        self.data_length + self.index_length + self.small_bytes
    }

    /// What it keeps in memory while it is open, without the cache.
    pub fn memory_bytes(&self) -> usize {
        let chunks = match &self.chunks {
            Chunks::Compressed(info) => info.offsets.memory_bytes(),
            Chunks::Plain { sums, .. } => sums.as_ref().map_or(0, |sums| sums.len() * 4),
        };
        std::mem::size_of::<Sstable>()
            + chunks
            + self.page_sums.as_ref().map_or(0, |sums| sums.len() * 4)
            + self.summary.memory_bytes()
            + self.filter.as_ref().map_or(0, Filter::memory_bytes)
            + 8192
    }

    /// Whether the key lies between the first and the last, and the filter does not exclude it. No I/O.
    pub fn may_contain(&self, key: &DecoratedKey) -> bool {
        *self.first_key() <= *key
            && *key <= *self.last_key()
            && self.filter.as_ref().is_none_or(|filter| filter.may_contain(model::token::hash128(&key.key)))
    }

    /// Whether a partition of the range may be in it, by the first and last key.
    pub fn overlaps(&self, range: &PartitionRange) -> bool {
        use std::cmp::Ordering;
        let (first, last) = (self.first_key(), self.last_key());
        range.end.cmp_key(first.token, &first.key) == Ordering::Greater
            && range.start.cmp_key(last.token, &last.key) == Ordering::Less
    }

    /// A reader of the partitions in `range`, and of each what `slice` says.
    pub fn reader(
        self: &Rc<Self>,
        schema: &Rc<TableSchema>,
        range: PartitionRange,
        slice: Rc<Slice>,
        options: ReadOptions,
    ) -> Reader {
        Reader::new(self.clone(), schema.clone(), range, slice, options)
    }

    /// The file's columns matched with those of a schema version.
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

    /// Content bytes of every chunk but the last.
    pub(crate) fn chunk_length(&self) -> usize {
        match &self.chunks {
            Chunks::Compressed(info) => info.chunk_length,
            Chunks::Plain { chunk, .. } => *chunk,
        }
    }

    pub(crate) fn chunk_count(&self) -> u64 {
        self.content_length.div_ceil(self.chunk_length() as u64)
    }

    /// Where the stored bytes of chunk `n` begin; the end of the file for the number of chunks.
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

    /// Checks the stored bytes of chunk `n` and fills `out`, which has the chunk's length, with its content.
    pub(crate) fn decode_chunk(&self, n: u64, stored: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let corrupt = |why: &str| Error::corrupt(self.data.path(), self.chunk_start(n), why);
        match &self.chunks {
            Chunks::Plain { sums, .. } => {
                if stored.len() != out.len() {
                    return Err(corrupt("the file ends too early"));
                }
                if sums.as_ref().is_some_and(|sums| sums.get(n as usize) != Some(&crc32fast::hash(stored))) {
                    return Err(corrupt("checksum of a chunk"));
                }
                out.copy_from_slice(stored);
            }
            Chunks::Compressed(info) => {
                let (body, sum) = stored.split_last_chunk::<4>().ok_or_else(|| corrupt("the file ends too early"))?;
                if crc32fast::hash(body) != u32::from_be_bytes(*sum) {
                    return Err(corrupt("checksum of a chunk"));
                }
                if body.len() >= info.max_compressed {
                    if body.len() != out.len() {
                        return Err(corrupt("length of a plain chunk"));
                    }
                    out.copy_from_slice(body);
                } else if !info.algorithm.decompress(body, out) {
                    return Err(corrupt("a chunk does not decompress"));
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
