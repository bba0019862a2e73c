//! The read path of a replica: a permit or the previous page's querier, the engine's merged
//! fragments, a page of rows.

use crate::digest::Digester;
use crate::error::ReplicaError;
use crate::page::{Flow, Page, PageBuilder, PageEnd, Position};
use crate::permit::Permit;
use crate::querier::cache::Purpose;
use crate::querier::keep::FoundQuerier;
use crate::querier::{self, Querier};
use crate::rate_limiter::ReadCharge;
use crate::replica::Replica;
use crate::request::{Context, ReadCommand};
use engine::{LARGE, PartitionHead, ReadId, ReadOptions, Reader, Resumed, Suspended};
use model::TableId;
use model::fragment::Fragment;
use model::key::ClusteringCut;
use model::range::PartitionRange;

/// The least time between two warnings about tombstones.
const TOMBSTONE_WARNING_INTERVAL: rt::time::Duration = rt::time::Duration::from_secs(10);

impl Replica {
    /// Evicts the readers kept for a table, or all of them. A reader of a table that was dropped,
    /// truncated or altered would never be used again; this frees its memory at once.
    pub fn forget_queriers(&self, table: Option<TableId>) {
        self.queriers.forget(table);
    }

    /// Evicts the readers kept for a tablet that leaves the shard. `range`: its partitions.
    pub fn forget_queriers_of_tablet(&self, table: TableId, range: &PartitionRange) {
        self.queriers.forget_tablet(table, range);
    }

    /// Whether readers of this table are kept for next pages.
    pub fn keeps_queriers_of(&self, table: TableId) -> bool {
        self.queriers.has_of(table)
    }

    /// Reads one page. `digester` gets the fragments, `charge` the bytes.
    pub(crate) async fn read(
        &self,
        command: &ReadCommand,
        context: &Context,
        digester: Option<&mut Digester>,
        mut charge: Option<&mut ReadCharge<'_>>,
    ) -> Result<Box<Page>, ReplicaError> {
        let Some((mut range, mut ranges)) = command.ranges.split_first() else {
            return Err(ReplicaError::Rejected("a read names no partitions".into()));
        };
        let (mut permit, mut reader);
        match self.find(command, Purpose::Pages, context) {
            None => {
                permit = self.permit(context).await?;
                reader = self.open(command, context, range)?;
            }
            Some(found) => (permit, reader) = self.resume_querier(found, command, context, range).await?,
        }
        let schema = reader.schema().clone();
        let mut builder = PageBuilder::of(&schema, command);
        if let Some(digester) = digester {
            builder.digest_into(digester);
        }
        while !self.fill_page(&mut reader, &mut builder, &mut permit, context, charge.as_deref_mut()).await? {
            let Some((next, behind)) = ranges.split_first() else { break };
            (range, ranges) = (next, behind);
            reader = self.open(command, context, range)?;
        }
        let head = builder.head();
        let page = Box::new(builder.finish_as(|body| self.engine.large_reads().result(body, context.deadline.0)));
        let has_more = match page.end {
            PageEnd::Exhausted => false,
            PageEnd::Rows => !command.ends_with_rows,
            PageEnd::Bytes | PageEnd::Tombstones => true,
        };
        if has_more {
            self.keep(reader, head, permit, command, Purpose::Pages, context, range, page.last.as_ref());
        }
        self.account(&page, command, context);
        Ok(page)
    }

    #[inline]
    pub(crate) fn open(
        &self,
        command: &ReadCommand,
        context: &Context,
        range: &PartitionRange,
    ) -> Result<Reader, ReplicaError> {
        let singular = range.singular_key().is_some();
        let options = ReadOptions {
            class: rt::fs::IoClass::of(context.class.group()),
            fill_cache: singular && !command.bypass_cache,
            bypass: command.bypass_cache,
            read: self.engine.large_reads().next_id(Some(context.deadline.0)),
        };
        self.engine
            .reader(command.table, range.clone(), command.slice.clone(), options)
            .map_err(|_| ReplicaError::NoSuchTable)
    }

    /// Feeds the page from a reader. True: the page is full; false: the reader has ended.
    async fn fill_page(
        &self,
        reader: &mut Reader,
        builder: &mut PageBuilder<'_>,
        permit: &mut Permit,
        context: &Context,
        mut charge: Option<&mut ReadCharge<'_>>,
    ) -> Result<bool, ReplicaError> {
        let mut begun = false;
        loop {
            loop {
                let fed = feed(reader, builder);
                if let Some(charge) = &mut charge {
                    charge.bytes = builder.examined_bytes();
                }
                match fed? {
                    Fed::Full => return Ok(true),
                    Fed::Empty => break,
                    Fed::Large(fragment) => {
                        // Fragments before this one are dropped, or are in the result.
                        let held = builder.weight_of(&fragment) + builder.bytes();
                        if held > permit.large_memory() {
                            self.hold(reader.read_id(), held - permit.large_memory(), permit, context).await?;
                        }
                        // Boxed: it is rare, and must not enlarge the future of a page.
                        let flow = Box::pin(builder.push_large(*fragment)).await?;
                        if !follow(reader, flow) {
                            return Ok(true);
                        }
                        context.check_wanted()?;
                    }
                }
            }
            if reader.is_finished() {
                return Ok(false);
            }
            if std::mem::replace(&mut begun, true) {
                permit.set_memory(builder.bytes());
                if builder.bytes() >= permit.large_memory() + LARGE {
                    let more = builder.bytes() - permit.large_memory();
                    self.hold(reader.read_id(), more, permit, context).await?;
                }
                rt::task::maybe_yield().await;
                context.check_wanted()?;
            }
            if !reader.advance().await? {
                return Ok(false);
            }
        }
    }

    /// Waits until a read may hold this many more bytes of large rows or results, unless its answer
    /// is not needed any more.
    #[cold]
    pub(crate) async fn hold(
        &self,
        read: ReadId,
        bytes: usize,
        permit: &mut Permit,
        context: &Context,
    ) -> Result<(), ReplicaError> {
        let more = Box::pin(self.engine.large_reads().enter(read, bytes)).await;
        permit.hold_large(more, bytes);
        context.check_wanted()
    }

    /// Acquires a permit. Kept readers of the class are evicted first, if none is free.
    pub(crate) async fn permit(&self, context: &Context) -> Result<Permit, ReplicaError> {
        let permits = &self.permits[context.class as usize];
        loop {
            if let Some(permit) = permits.try_acquire() {
                return Ok(permit);
            }
            if !self.queriers.evict_for_permit(context.class) {
                break;
            }
        }
        context.trace("Waiting for a read permit");
        let permit = permits.acquire().await?;
        context.check_wanted()?;
        Ok(permit)
    }

    /// The querier that the previous page left for this purpose, if it fits.
    #[inline]
    pub(crate) fn find(&self, command: &ReadCommand, purpose: Purpose, context: &Context) -> Option<FoundQuerier> {
        if !self.config.querier_cache || command.first_page {
            return None;
        }
        if querier::continues(command) {
            return self.queriers.find(command, purpose, context, self.engine.schema(command.table).as_deref());
        }
        self.queriers.discard_read_ahead(command, purpose);
        None
    }

    /// Resumes a querier. If its reader does not fit, a new one is opened, with the querier's
    /// permit.
    pub(crate) async fn resume_querier(
        &self,
        found: FoundQuerier,
        command: &ReadCommand,
        context: &Context,
        range: &PartitionRange,
    ) -> Result<(Permit, Reader), ReplicaError> {
        let FoundQuerier { querier: Querier { reader, permit, .. }, cut, advance } = found;
        let mut resumed = reader.resume(&self.engine, command.table, range, &command.slice, cut.as_ref());
        if let Resumed::Waits(reader) = resumed {
            // Boxed: it is rare, and must not enlarge the future of a first page.
            resumed = Box::pin(self.read_on(reader, cut.as_ref(), command, range)).await?;
        }
        match self.queriers.resumed(resumed, advance, context) {
            Some(reader) => Ok((permit, reader)),
            None => Ok((permit, self.open(command, context, range)?)),
        }
    }

    /// Resumes a reader that must first read from disk.
    async fn read_on(
        &self,
        mut reader: Suspended,
        cut: Option<&ClusteringCut>,
        command: &ReadCommand,
        range: &PartitionRange,
    ) -> Result<Resumed, ReplicaError> {
        loop {
            reader.read_on().await?;
            match reader.resume(&self.engine, command.table, range, &command.slice, cut) {
                Resumed::Waits(again) => reader = again,
                done => return Ok(done),
            }
        }
    }

    /// Keeps a reader that stopped at `last` for the next page, unless reads wait for its permit or
    /// the query has no more pages.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn keep(
        &self,
        reader: Reader,
        head: Option<PartitionHead>,
        mut permit: Permit,
        command: &ReadCommand,
        purpose: Purpose,
        context: &Context,
        range: &PartitionRange,
        last: Option<&Position>,
    ) {
        if command.query.is_none() || !self.config.querier_cache {
            return;
        }
        permit.leave_large();
        let wanted = self.permits[context.class as usize].has_waiting();
        if let Some(querier) = Querier::new(reader, head, permit, command, context.class, range, last) {
            self.queriers.keep(querier, wanted, command, purpose, context, range);
        }
    }

    fn account(&self, page: &Page, command: &ReadCommand, context: &Context) {
        let counters = &self.metrics;
        counters.reads.set(counters.reads.get() + 1);
        if page.end.is_short() {
            counters.short_reads.set(counters.short_reads.get() + 1);
        }
        if page.tombstones > 0 {
            counters.tombstones.set(counters.tombstones.get() + page.tombstones);
            if page.tombstones >= self.config.tombstone_warn_threshold {
                let due =
                    counters.last_tombstone_warning.get().is_none_or(|at| at.elapsed() >= TOMBSTONE_WARNING_INTERVAL);
                if due {
                    counters.last_tombstone_warning.set(Some(rt::time::now()));
                    tracing::warn!(table_id = %command.table, tombstones = page.tombstones, rows = page.rows,
                        "a page read many tombstones (see tombstone_warn_threshold)");
                }
            }
        }
        if let Some(trace) = &context.trace {
            trace.event(format!(
                "Page of {} rows, {} bytes, {} tombstones",
                page.rows,
                page.body.len(),
                page.tombstones
            ));
        }
    }
}

/// Why the feeding of a page paused.
enum Fed {
    /// The page is full.
    Full,
    /// The reader has no more fragments in memory.
    Empty,
    /// The next fragment is large: the read must first be allowed to hold it.
    Large(Box<Fragment>),
}

/// Feeds the page with the fragments that the reader has in memory.
fn feed(reader: &mut Reader, builder: &mut PageBuilder<'_>) -> Result<Fed, ReplicaError> {
    while let Some(fragment) = reader.pop() {
        // Of all fragments only rows may be large.
        if matches!(fragment, Fragment::Row { .. } | Fragment::Static(_)) && builder.weight_of(&fragment) >= LARGE {
            return Ok(Fed::Large(Box::new(fragment)));
        }
        if !push(reader, builder, fragment)? {
            return Ok(Fed::Full);
        }
    }
    Ok(Fed::Empty)
}

/// Pushes one fragment to the page. False: the page is full.
#[inline]
fn push(reader: &mut Reader, builder: &mut PageBuilder<'_>, fragment: Fragment) -> Result<bool, ReplicaError> {
    Ok(follow(reader, builder.push(fragment)?))
}

/// Moves the reader to the fragment that the page needs next. False: the page is full.
#[inline]
fn follow(reader: &mut Reader, flow: Flow) -> bool {
    match flow {
        Flow::Continue => true,
        Flow::Stop => false,
        Flow::SkipPartition => {
            reader.skip_partition();
            true
        }
    }
}
