//! From merged fragments to a page of rows. Pure rules decide which rows are live, which rows
//! count, and where a page ends.
//!
//! A page ends on rows, on bytes (after the row that crosses the limit), on tombstones, or where
//! the data ends. Its last position is exactly where the next page begins.

use crate::digest::Digester;
use crate::error::ReplicaError;
use crate::output::{Binding, Output, StoredRow, TooLong};
use crate::querier;
use crate::reduce::{Reducer, values};
use crate::request::{Limits, ReadCommand};
use bytes::Bytes;
use engine::PartitionHead;
use model::compact::{Cover, is_live, live_cells, live_marker};
use model::fragment::Fragment;
use model::key::{Clustering, ClusteringCut, DecoratedKey, split_partition_key};
use model::row::Row;
use model::schema::TableSchema;
use model::time::{Seconds, Tombstone};
use std::rc::Rc;

/// The region of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum Region {
    /// Before the static row.
    Start = 0,
    /// At the static row.
    Static = 1,
    /// Among the rows.
    Clustered = 2,
    /// After the last row.
    End = 3,
}

/// A position in a reader's stream: the last position that a page consumed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Position {
    /// The partition's key.
    pub key: Bytes,
    /// The part of the partition.
    pub region: Region,
    /// Among the rows: the clustering prefix.
    pub prefix: Clustering,
    /// Before (-1), at (0) or after (1) the prefix, in the reader's order.
    pub weight: i8,
}

/// Why a page ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum PageEnd {
    /// The requested ranges have no more data.
    #[default]
    Exhausted = 0,
    /// The row limit was reached.
    Rows = 1,
    /// The limit of bytes was reached.
    Bytes = 2,
    /// The limit of tombstones was reached.
    Tombstones = 3,
}

impl PageEnd {
    /// Whether the page ended before it had the requested rows.
    pub fn is_short(self) -> bool {
        matches!(self, PageEnd::Bytes | PageEnd::Tombstones)
    }

    /// Decodes the number of the wire form.
    pub fn from_code(code: u8) -> Option<PageEnd> {
        [PageEnd::Exhausted, PageEnd::Rows, PageEnd::Bytes, PageEnd::Tombstones]
            .into_iter()
            .find(|end| *end as u8 == code)
    }
}

/// A page of rows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Page {
    /// The number of rows.
    pub rows: u64,
    /// The rows, each value as i32 length and bytes. Built once, then shared.
    pub body: Bytes,
    /// The last position consumed. None if the ranges had no data.
    pub last: Option<Position>,
    /// Rows returned of the partition of `last`, including rows of earlier pages.
    pub rows_in_last: u64,
    /// Why the page ended.
    pub end: PageEnd,
    /// Tombstones read.
    pub tombstones: u64,
    /// Rows read, static and dead ones included. Like all counts of a page, it depends only on the
    /// data and the command, not on where the data is stored.
    pub examined_rows: u64,
    /// Bytes of the keys and rows read.
    pub examined_bytes: u64,
}

/// The caller's next step after a fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// Push the next fragment.
    Continue,
    /// Skip to the next partition: the page needs no more of this one.
    SkipPartition,
    /// The page is full.
    Stop,
}

/// The first capacity of a body, in bytes: a small result takes one allocation.
const FIRST_BODY: usize = 512;
/// A body beyond this many bytes gets the capacity of a whole page at once, instead of being copied
/// at each doubling.
const LARGE_BODY: usize = 32 << 10;
/// The most room that is reserved for a page, in bytes. Pages that may be longer grow by doubling.
const MOST_ROOM: u64 = 16 << 20;

/// Builds a page.
pub struct PageBuilder<'a> {
    schema: &'a TableSchema,
    output: &'a Output,
    binding: Rc<Binding>,
    /// Set if the output has reductions.
    reducer: Option<Reducer>,
    limits: Limits,
    now: Seconds,
    /// The partition in which the previous page ended, and the rows it returned of it.
    resumed: Option<(Bytes, u64)>,
    /// The page, without its rows.
    page: Page,
    body: Vec<u8>,
    key: Option<DecoratedKey>,
    cover: Cover,
    static_row: Option<Row>,
    dead_static_row: Option<Row>,
    /// Whether the stream is inside a partition.
    inside: bool,
    /// Where the partition resumes, in the reader's order. The previous page has counted a deletion
    /// that is open there.
    resumes_at: Option<ClusteringCut>,
    rows_in_partition: u64,
    /// The page ends with the partition. Set if the tombstone of the partition or of its static row
    /// reached the limit, and no live row followed.
    due: bool,
    /// The digester of the fragments, if a digest is requested.
    digester: Option<&'a mut Digester>,
    /// Whether the page's last position is in this partition.
    marked: bool,
}

impl<'a> PageBuilder<'a> {
    /// The builder of a command's page.
    ///
    /// Rows and deletions that the previous page counted in the partition where this one begins do
    /// not count again. Otherwise a page could end where it begins, and the query would never end.
    pub fn of(schema: &'a TableSchema, command: &'a ReadCommand) -> Self {
        let mut builder = PageBuilder::new(schema, &command.output, command.limits, command.now);
        if let Some(resume) = &command.slice.resume {
            builder.resumed = Some((resume.key.key.clone(), command.resumed_rows));
            builder.resumes_at = querier::first_cut(&resume.rows, command.slice.reversed);
        }
        builder
    }

    /// The builder of a first page.
    pub fn new(schema: &'a TableSchema, output: &'a Output, limits: Limits, now: Seconds) -> Self {
        PageBuilder {
            schema,
            output,
            binding: output.bind(schema),
            reducer: Reducer::new(output, schema),
            limits,
            now,
            resumed: None,
            page: Page::default(),
            body: Vec::new(),
            key: None,
            cover: Cover::default(),
            static_row: None,
            dead_static_row: None,
            inside: false,
            resumes_at: None,
            rows_in_partition: 0,
            due: false,
            digester: None,
            marked: false,
        }
    }

    /// Also feeds the fragments to a digester.
    pub fn digest_into(&mut self, digester: &'a mut Digester) {
        self.digester = Some(digester);
    }

    /// The head of the current partition, if the page has consumed a part of it but not its end.
    pub fn head(&self) -> Option<PartitionHead> {
        let key = self.key.as_ref().filter(|_| self.inside)?;
        Some(PartitionHead {
            key: key.clone(),
            tombstone: self.cover.static_row(),
            static_row: self.static_row.as_ref().or(self.dead_static_row.as_ref()).cloned(),
            open: self.cover.range(),
        })
    }

    /// Takes the next fragment of the stream.
    pub fn push(&mut self, fragment: Fragment) -> Result<Flow, ReplicaError> {
        debug_assert!(!self.is_full(), "a full page takes no more");
        debug_assert!(
            self.inside || matches!(fragment, Fragment::PartitionStart { .. }),
            "rows and changes come after the start of their partition"
        );
        self.digest(&fragment);
        match fragment {
            Fragment::PartitionStart { key, tombstone } => self.start(key, tombstone),
            Fragment::Static(row) => {
                self.examined(row.0.len());
                if self.lives(&row, self.cover.static_row()) {
                    self.static_row = Some(row);
                    if self.output.distinct && self.rows_in_partition == 0 {
                        return self.emit(None, Region::Static);
                    }
                } else {
                    self.dead_static_row = Some(row);
                    self.page.tombstones += 1;
                    self.due |= self.has_enough_tombstones();
                }
                Ok(Flow::Continue)
            }
            Fragment::Row { key, row } => {
                self.examined(key.0.len() + row.0.len());
                if !self.lives(&row, self.cover.row()) {
                    return Ok(self.tombstone(key, 0));
                }
                if self.output.distinct {
                    self.emit(None, Region::End)
                } else {
                    self.emit(Some((key, row)), Region::Clustered)
                }
            }
            Fragment::Change { at, tombstone } => {
                self.cover.change(tombstone);
                if self.resumes_at.take().is_some_and(|cut| cut == at) {
                    return Ok(Flow::Continue);
                }
                let weight = if at.after { 1 } else { -1 };
                Ok(self.tombstone(at.prefix, weight))
            }
            Fragment::PartitionEnd => self.end_partition(),
        }
    }

    /// Like [`PageBuilder::push`], for a large fragment: yields while it writes the cells of a row.
    pub async fn push_large(&mut self, fragment: Fragment) -> Result<Flow, ReplicaError> {
        debug_assert!(!self.is_full(), "a full page takes no more");
        let Fragment::Row { key, row } = fragment else { return self.push(fragment) };
        if self.output.distinct || self.reducer.is_some() {
            return self.push(Fragment::Row { key, row });
        }
        let row = Fragment::Row { key, row };
        self.digest(&row);
        let Fragment::Row { key, row } = row else { unreachable!("it is a row") };
        self.examined(key.0.len() + row.0.len());
        if !self.lives(&row, self.cover.row()) {
            return Ok(self.tombstone(key, 0));
        }
        let before = self.body.len();
        let mut body = std::mem::take(&mut self.body);
        let partition = self.key.as_ref().expect("rows come after their partition's start");
        let split = split_partition_key(&partition.key, self.schema.partition_key.len()).unwrap_or_default();
        let stored = StoredRow {
            key_components: &split,
            clustering: Some(&key),
            static_cells: self.static_row.as_ref().map(|row| live_cells(row, self.cover.static_row(), self.now)),
            cells: Some(live_cells(&row, self.cover.row(), self.now)),
        };
        let max = self.limits.unpaged_bytes;
        let written = self.binding.write_large_row(stored, self.now, max, &mut body).await;
        self.body = body;
        self.check_length(written)?;
        self.emitted(Some((key, row)), Region::Clustered, before)
    }

    fn digest(&mut self, fragment: &Fragment) {
        if let Some(digester) = self.digester.as_deref_mut() {
            digester.take(self.schema, fragment);
        }
    }

    fn check_length(&self, written: Result<(), TooLong>) -> Result<(), ReplicaError> {
        let what = if self.limits.paged { "a row" } else { "unpaged query" };
        written.map_err(|_| ReplicaError::too_large(what, self.limits.unpaged_bytes))
    }

    fn examined(&mut self, bytes: usize) {
        self.page.examined_rows += 1;
        self.page.examined_bytes += bytes as u64;
    }

    fn has_enough_tombstones(&self) -> bool {
        self.limits.paged && self.page.tombstones >= self.limits.tombstones
    }

    /// Whether a row is live. Cells of dropped columns, which memtables still have, do not make it
    /// live.
    fn lives(&self, row: &Row, cover: Tombstone) -> bool {
        if self.schema.dropped.is_empty() {
            return is_live(row, cover, self.now);
        }
        live_marker(row, cover, self.now).is_some()
            || live_cells(row, cover, self.now).any(|cell| self.schema.column(cell.column).is_some())
    }

    /// Completes the page, when the stream has ended or `push` returned `Stop`.
    pub fn finish(&mut self) -> Page {
        self.finish_as(Bytes::from)
    }

    /// Like [`PageBuilder::finish`]; `result` turns the bytes into the page's body. By reference,
    /// because moving the large builder would copy it.
    #[inline]
    pub fn finish_as(&mut self, result: impl FnOnce(Vec<u8>) -> Bytes) -> Page {
        let page = &self.page;
        debug_assert!(page.rows <= self.limits.rows.max(1), "a page has no more rows than are wanted");
        let has_position = page.last.is_some() || (page.rows == 0 && page.end == PageEnd::Exhausted);
        debug_assert!(has_position, "a page with rows, or one that others follow, has a position");
        if let Some(reducer) = self.reducer.take().filter(|_| self.page.rows > 0) {
            reducer.finish(&mut self.body);
        }
        self.page.body = result(std::mem::take(&mut self.body));
        std::mem::take(&mut self.page)
    }

    /// The most bytes of result for a fragment: a column that is selected several times is written
    /// several times.
    #[inline]
    pub fn weight_of(&self, fragment: &Fragment) -> usize {
        fragment.weight() * self.binding.repeats()
    }

    /// Bytes of result so far.
    pub fn bytes(&self) -> usize {
        self.body.len()
    }

    /// Bytes of keys and rows read so far.
    pub fn examined_bytes(&self) -> u64 {
        self.page.examined_bytes
    }

    /// Whether a limit was reached.
    pub fn is_full(&self) -> bool {
        self.page.end != PageEnd::Exhausted
    }

    fn start(&mut self, key: DecoratedKey, tombstone: Tombstone) -> Result<Flow, ReplicaError> {
        self.rows_in_partition = match self.resumed.take() {
            Some((resumed, rows)) if resumed == key.key => rows,
            _ => {
                self.resumes_at = None;
                0
            }
        };
        self.page.examined_bytes += key.key.len() as u64;
        self.key = Some(key);
        self.cover.start(tombstone);
        self.static_row = None;
        self.dead_static_row = None;
        self.inside = true;
        self.marked = false;
        // A page never ends on a partition's tombstone, because the next page would begin with the
        // same one. It may end after the partition's rows.
        self.due = !tombstone.is_live() && {
            self.page.tombstones += 1;
            self.has_enough_tombstones()
        };
        Ok(Flow::Continue)
    }

    fn end_partition(&mut self) -> Result<Flow, ReplicaError> {
        self.inside = false;
        self.resumes_at = None;
        if self.rows_in_partition == 0
            && self.static_row.is_some()
            && self.output.static_only_rows
            && !self.output.distinct
        {
            let flow = self.emit(None, Region::End)?;
            return Ok(if flow == Flow::SkipPartition { Flow::Continue } else { flow });
        }
        if self.due {
            self.mark(Region::End, Clustering::EMPTY, 0);
            self.page.end = PageEnd::Tombstones;
            return Ok(Flow::Stop);
        }
        Ok(Flow::Continue)
    }

    fn mark(&mut self, region: Region, prefix: Clustering, weight: i8) {
        match (&mut self.page.last, &self.key) {
            (Some(last), _) if self.marked => (last.region, last.prefix, last.weight) = (region, prefix, weight),
            (last, Some(key)) => {
                *last = Some(Position { key: key.key.clone(), region, prefix, weight });
                self.marked = true;
            }
            (_, None) => return,
        }
        self.page.rows_in_last = self.rows_in_partition;
    }

    fn tombstone(&mut self, prefix: Clustering, weight: i8) -> Flow {
        self.page.tombstones += 1;
        if self.has_enough_tombstones() {
            self.mark(Region::Clustered, prefix, weight);
            self.page.end = PageEnd::Tombstones;
            return Flow::Stop;
        }
        Flow::Continue
    }

    fn emit(&mut self, row: Option<(Clustering, Row)>, region: Region) -> Result<Flow, ReplicaError> {
        let key = self.key.as_ref().expect("rows come after their partition's start");
        let columns = self.schema.partition_key.len();
        let whole = [&key.key[..]];
        let split;
        let components: &[&[u8]] = if columns == 1 {
            &whole
        } else {
            split = split_partition_key(&key.key, columns).unwrap_or_default();
            &split
        };
        let stored = StoredRow {
            key_components: components,
            clustering: row.as_ref().map(|(key, _)| key),
            static_cells: self.static_row.as_ref().map(|row| live_cells(row, self.cover.static_row(), self.now)),
            cells: row.as_ref().map(|(_, row)| live_cells(row, self.cover.row(), self.now)),
        };
        let max = self.limits.unpaged_bytes;
        let before = self.body.len();
        if let Some(reducer) = &mut self.reducer {
            let written = self.binding.write_row(stored, self.now, max, &mut reducer.row);
            written.map_err(|_| ReplicaError::too_large("a row", max))?;
            reducer.take_row().map_err(|error| ReplicaError::Rejected(error.to_string()))?;
        } else {
            if self.body.capacity() == 0 {
                // Not `reserve`, which would be a reallocation.
                self.body = Vec::with_capacity(FIRST_BODY);
            }
            let written = self.binding.write_row(stored, self.now, max, &mut self.body);
            self.check_length(written)?;
        }
        self.emitted(row, region, before)
    }

    /// Counts a row whose values are written. `before`: the length of the body without it.
    #[inline]
    fn emitted(&mut self, row: Option<(Clustering, Row)>, region: Region, before: usize) -> Result<Flow, ReplicaError> {
        debug_assert!(
            self.reducer.is_some() || values(&self.body[before..]).count() == self.output.columns.len(),
            "a row has a value for each column of the output"
        );
        let page = self.limits.bytes.min(MOST_ROOM) as usize;
        if self.limits.paged && self.body.len() > LARGE_BODY && self.body.capacity() < page {
            let room = page + 2 * self.body.len() / (self.page.rows as usize + 1);
            self.body.reserve_exact(room.saturating_sub(self.body.len()));
        }
        self.page.rows += 1;
        self.rows_in_partition += 1;
        self.due = false;
        let partition_done = self.output.distinct || self.rows_in_partition >= self.limits.per_partition;
        let (region, prefix) = match row {
            _ if partition_done => (Region::End, Clustering::EMPTY),
            Some((key, _)) => (Region::Clustered, key),
            None => (region, Clustering::EMPTY),
        };
        self.mark(region, prefix, 0);
        let bytes = self.body.len() as u64;
        if !self.limits.paged && bytes > self.limits.unpaged_bytes {
            return Err(ReplicaError::too_large("unpaged query", self.limits.unpaged_bytes));
        }
        if self.page.rows >= self.limits.rows {
            self.page.end = PageEnd::Rows;
            return Ok(Flow::Stop);
        }
        if self.limits.paged && bytes > self.limits.bytes {
            self.page.end = PageEnd::Bytes;
            return Ok(Flow::Stop);
        }
        Ok(if partition_done { Flow::SkipPartition } else { Flow::Continue })
    }
}

#[cfg(test)]
mod tests;
