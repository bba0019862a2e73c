//! The receiver of a tablet that is streamed as mutations: writes the fragments of a source's
//! reader into sstables of its own. They never pass through a memtable.
//!
//! Fragments arrive in the order of their partitions. So what is sealed is complete up to a
//! partition, and a later attempt asks only for what follows ([`IncomingMutations::after`]). A note
//! lists the sealed sstables. If one of them is missing or damaged, all begins again.

use super::arrived::ArrivedSource;
use super::attach::{StreamTarget, tablet_of};
use super::incoming::check_room;
use super::layout::{StreamLayout, StreamedSstable};
use super::outgoing::TabletSize;
use super::session_dir;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::files::sealed;
use crate::table_dir::{names_in, remove_tree};
use model::HostId;
use model::fragment::{Fragment, StreamOrder};
use model::key::DecoratedKey;
use model::range::PartitionRange;
use model::schema::TableSchema;
use model::time::Tombstone;
use sstable::{Generation, PageCache, Sstable, SstablePath, Writer, WriterOptions};
use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The size of an sstable, in bytes, at which it is sealed and another one begins. A cut costs no
/// more than this.
const SPLIT: u64 = 128 << 20;
/// A partition is not expected to take fewer bytes of an sstable. It bounds the memory of filters.
const SMALLEST_PARTITION: u64 = 16;

/// The note of the sealed sstables, in their directory.
const FILE: &str = "sealed.json";
const KIND: &str = "sealed-sstables";
const FORMAT: u32 = 1;

/// An attempt to receive a tablet as mutations. See the module.
pub struct IncomingMutations {
    dir: PathBuf,
    schema: Rc<TableSchema>,
    options: WriterOptions,
    split: u64,
    checks: Checks,
    /// The sstable that is being written.
    current: Option<Writer>,
    sealed: Vec<StreamedSstable>,
    /// The last partition of the sealed sstables.
    after: Option<DecoratedKey>,
}

impl Engine {
    /// Begins to receive the mutations of a source, or continues an earlier attempt.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotAttached`] if the tablet is not on this shard.
    pub async fn receive_mutations(
        &self,
        target: StreamTarget,
        source: HostId,
    ) -> Result<IncomingMutations, EngineError> {
        let table = self.table_or_error(target.table)?;
        let range = tablet_of(&table, target)?.range.clone();
        self.make_directory(&table).await?;
        // Files of the same source are not needed.
        table.arriving.earlier_have_left().await;
        remove_tree(&session_dir::from_source(&table.dir, target.session, target.epoch, source)).await?;
        let dir = session_dir::of_mutations(&table.dir, target.session, target.epoch, source);
        session_dir::make(&table.dir, &dir).await?;
        let (sealed, after) = match sealed_before(&dir).await? {
            Some(known) => known,
            None => {
                remove_tree(&dir).await?;
                session_dir::make(&table.dir, &dir).await?;
                (Vec::new(), None)
            }
        };
        remove_others(&dir, &sealed).await?;
        let schema = table.schema();
        let checks = Checks::new(range, schema.clone(), after.clone());
        let options = self.writer_options(&schema);
        Ok(IncomingMutations { dir, schema, options, split: SPLIT, checks, current: None, sealed, after })
    }
}

/// The sstables that an earlier attempt has sealed, and their last partition. `None` if they cannot
/// be used.
async fn sealed_before(dir: &Path) -> Result<Option<(Vec<StreamedSstable>, Option<DecoratedKey>)>, EngineError> {
    let path = dir.join(FILE);
    let noted = sealed::read::<Vec<StreamedSstable>>(&path, KIND, FORMAT).await.map_err(EngineError::io(path))?;
    let Ok(sealed) = noted else { return Ok(None) };
    let Ok(layout) = StreamLayout::new(&sealed) else { return Ok(None) };
    let mut last = None;
    for generation in layout.generations() {
        match open(dir, *generation).await {
            Ok(sstable) => last = Some(sstable.last_key().clone()),
            Err(error) if is_lost(&error) => {
                tracing::warn!(%error, "an sstable of a streamed tablet cannot be used: streaming it begins again");
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some((sealed, last)))
}

/// Whether the sstable is damaged, or files of it are missing.
fn is_lost(error: &sstable::Error) -> bool {
    match error {
        sstable::Error::Corrupt(_) => true,
        sstable::Error::Io { source, .. } => rt::fs::is_absence(source),
        sstable::Error::Unsupported(_) => false,
    }
}

/// Removes the files of an attempt that did not complete.
async fn remove_others(dir: &Path, sealed: &[StreamedSstable]) -> Result<(), EngineError> {
    let layout = StreamLayout::new(sealed)?;
    let place = |sstable: usize| SstablePath::new(dir, layout.generations()[sstable]);
    let is_own = |name: &str| {
        name == FILE || layout.files().iter().any(|file| place(file.sstable).file_name(file.component.name()) == name)
    };
    for name in names_in(dir).await?.into_iter().filter(|name| !is_own(name)) {
        let path = dir.join(name);
        rt::fs::remove_file(&path).await.map_err(EngineError::io(&path))?;
    }
    Ok(())
}

async fn open(dir: &Path, generation: Generation) -> Result<Rc<Sstable>, sstable::Error> {
    Sstable::open_at(&SstablePath::new(dir, generation), &PageCache::new(0)).await
}

impl IncomingMutations {
    /// The schema with which the sstables are written. The fragments must be of the same version.
    pub fn schema(&self) -> &TableSchema {
        &self.schema
    }

    /// The partitions up to this one have arrived, and are not needed again.
    pub fn after(&self) -> Option<&DecoratedKey> {
        self.after.as_ref()
    }

    /// Prepares for a tablet of about this size.
    ///
    /// # Errors
    ///
    /// [`EngineError::Io`] with `StorageFull` if the disk has no room for what is missing.
    pub async fn expect(&mut self, size: TabletSize) -> Result<(), EngineError> {
        self.options.expected_partitions = size.partitions.min(self.split / SMALLEST_PARTITION);
        let files = self.sealed.iter().flat_map(|one| &one.files);
        let arrived: u64 = files.map(|(_, len)| len).sum();
        check_room(&self.dir, size.bytes.saturating_sub(arrived)).await
    }

    /// Seals sstables of this size in bytes.
    pub fn split_at(&mut self, bytes: u64) {
        self.split = bytes;
    }

    /// Takes the next fragments. After an error this attempt is over; another one continues with
    /// what is sealed.
    ///
    /// # Errors
    ///
    /// [`EngineError::WrongMutations`] if they are not what a reader of the tablet returns.
    pub async fn push(&mut self, fragments: Vec<Fragment>) -> Result<(), EngineError> {
        for fragment in fragments {
            self.checks.take(&fragment)?;
            if matches!(fragment, Fragment::PartitionStart { .. })
                && self.current.as_ref().is_some_and(|writer| writer.bytes_written() >= self.split)
            {
                self.seal().await?;
            }
            let writer = match &mut self.current {
                Some(writer) => writer,
                None => {
                    let (schema, options) = (self.schema.clone(), self.options.clone());
                    self.current.insert(Writer::create(&self.dir, Generation::fresh(), schema, options).await?)
                }
            };
            writer.push(fragment).await?;
        }
        Ok(())
    }

    /// Seals the current sstable, and notes that.
    async fn seal(&mut self) -> Result<(), EngineError> {
        let Some(writer) = self.current.take() else { return Ok(()) };
        let Some(sealed) = writer.finish(&[]).await? else { return Ok(()) };
        let sstable = open(&self.dir, sealed.generation).await?;
        self.sealed.push(StreamedSstable::new(sealed.generation, sstable.files_to_send().await?));
        let path = self.dir.join(FILE);
        sealed::write(&path, KIND, FORMAT, &self.sealed).await.map_err(EngineError::io(path))?;
        self.after = Some(sstable.last_key().clone());
        Ok(())
    }

    /// Seals what has arrived. To be called after the last fragment.
    ///
    /// # Errors
    ///
    /// [`EngineError::WrongMutations`] if the last partition has not ended.
    pub async fn finish(mut self) -> Result<ArrivedSource, EngineError> {
        self.checks.end()?;
        self.seal().await?;
        Ok(ArrivedSource { layout: StreamLayout::new(&self.sealed)?, dir: self.dir })
    }

    /// Removes the files of the sstable that is being written.
    pub async fn abandon(self) {
        if let Some(writer) = self.current {
            writer.abort().await;
        }
    }
}

/// Checks that fragments are what a reader of a tablet returns.
struct Checks {
    /// The tablet.
    range: PartitionRange,
    schema: Rc<TableSchema>,
    order: StreamOrder,
    /// The last partition that has begun.
    last: Option<DecoratedKey>,
    /// The last row or change of it.
    last_fragment: Option<Fragment>,
    /// The range tombstone that is open.
    open: Tombstone,
}

impl Checks {
    fn new(range: PartitionRange, schema: Rc<TableSchema>, last: Option<DecoratedKey>) -> Checks {
        let order = StreamOrder::default();
        Checks { range, schema, order, last, last_fragment: None, open: Tombstone::LIVE }
    }

    fn take(&mut self, fragment: &Fragment) -> Result<(), EngineError> {
        if !self.order.take(fragment) {
            return Err(EngineError::WrongMutations("a partition has its parts in another order"));
        }
        match fragment {
            Fragment::PartitionStart { key, .. } => self.start(key),
            Fragment::Static(_) => Ok(()),
            Fragment::Row { key, .. } if key.len() != self.schema.clustering.len() => {
                Err(EngineError::WrongMutations("a row has another number of clustering values"))
            }
            Fragment::Row { .. } => self.advance(fragment),
            Fragment::Change { tombstone, .. } => {
                self.open = *tombstone;
                self.advance(fragment)
            }
            Fragment::PartitionEnd if !self.open.is_live() => {
                Err(EngineError::WrongMutations("a range tombstone is open at the end of its partition"))
            }
            Fragment::PartitionEnd => {
                self.last_fragment = None;
                Ok(())
            }
        }
    }

    fn start(&mut self, key: &DecoratedKey) -> Result<(), EngineError> {
        if self.last.as_ref().is_some_and(|last| *last >= *key) {
            return Err(EngineError::WrongMutations("partitions are not in order"));
        }
        if !self.range.contains(key) {
            return Err(EngineError::WrongMutations("a partition is outside of the tablet"));
        }
        self.last = Some(key.clone());
        Ok(())
    }

    fn advance(&mut self, fragment: &Fragment) -> Result<(), EngineError> {
        let last = self.last_fragment.as_ref().and_then(Fragment::position);
        if let (Some(last), Some(next)) = (last, fragment.position())
            && self.schema.order.compare(last, next) != Ordering::Less
        {
            return Err(EngineError::WrongMutations("rows are not in order"));
        }
        self.last_fragment = Some(fragment.clone());
        Ok(())
    }

    fn end(&self) -> Result<(), EngineError> {
        match self.order {
            StreamOrder::Between => Ok(()),
            _ => Err(EngineError::WrongMutations("the last partition has no end")),
        }
    }
}
