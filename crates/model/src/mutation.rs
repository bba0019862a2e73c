//! A mutation: changes of one partition in one contiguous buffer, which the commitlog, the
//! internode transport and the memtable parse.
//!
//! Layout, little-endian:
//!
//! ```text
//! u8 format (1), 16 bytes table id, 16 bytes schema version
//! u32 length, partition key
//! i64 timestamp, i32 deletion time        the partition's tombstone; live for none
//! u32 length, static row                  length 0: none
//! u32 count, range tombstone*             start: u8 after, u32 length, prefix; end: the same;
//!                                         i64 timestamp, i32 deletion time
//! u32 count, row*                         u32 length, clustering key; u32 length, row;
//!                                         by clustering order, each key once
//! ```

use crate::id::{SchemaVersion, TableId};
use crate::key::{Clustering, ClusteringCut, DecoratedKey, MAX_KEY_BYTES, split_partition_key};
use crate::row::{self, Malformed, Row};
use crate::schema::TableSchema;
use crate::time::{Seconds, Timestamp, Tombstone};
use crate::types::CqlType;
use bytes::Bytes;
use smallvec::SmallVec;

const FORMAT: u8 = 1;
const HEADER: usize = 1 + 16 + 16;

/// Changes to one partition of one table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mutation(Bytes);

/// A deletion of the rows between two cuts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeTombstone {
    /// Where it begins.
    pub start: ClusteringCut,
    /// Where it ends.
    pub end: ClusteringCut,
    /// The deletion.
    pub tombstone: Tombstone,
}

impl Mutation {
    /// Parses bytes of the log or of another node, and checks their layout.
    pub fn parse(bytes: Bytes) -> Result<Mutation, Malformed> {
        if bytes.first() != Some(&FORMAT) {
            return Err(Malformed("mutation format"));
        }
        let mut reader = Reader { all: &bytes, rest: bytes.get(HEADER..).ok_or(Malformed("mutation header"))? };
        let bad = Malformed("mutation");
        reader.bytes().ok_or(bad)?;
        reader.tombstone().ok_or(bad)?;
        let fixed = reader.bytes().ok_or(bad)?;
        if !fixed.is_empty() {
            Row::check(fixed)?;
        }
        for _ in 0..reader.u32().ok_or(bad)? {
            reader.range_tombstone().ok_or(bad)?;
        }
        for _ in 0..reader.u32().ok_or(bad)? {
            reader.bytes().ok_or(bad)?;
            Row::check(reader.bytes().ok_or(bad)?)?;
        }
        if !reader.rest.is_empty() {
            return Err(bad);
        }
        Ok(Mutation(bytes))
    }

    /// Checks that sstables of its table can hold it. [`Mutation::parse`] checks the layout alone.
    /// So mutations of another node or of the log are checked before they reach a memtable, because
    /// a memtable with a mutation that cannot be stored could never be flushed.
    pub fn check(&self, schema: &TableSchema) -> Result<(), Malformed> {
        let parts = self.parts();
        if parts.key.len() > MAX_KEY_BYTES {
            return Err(Malformed("partition key: it is longer than 65535 bytes"));
        }
        if split_partition_key(&parts.key, schema.partition_key.len()).is_none() {
            return Err(Malformed("partition key: the table has another number of components"));
        }
        if let Some(row) = &parts.static_row {
            check_cells(schema, row)?;
        }
        for range in &parts.range_tombstones {
            check_clustering(schema, &range.start.prefix)?;
            check_clustering(schema, &range.end.prefix)?;
        }
        for (key, row) in parts.rows {
            check_clustering(schema, &key)?;
            check_cells(schema, &row)?;
        }
        Ok(())
    }

    /// The encoded form.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// The table.
    pub fn table(&self) -> TableId {
        TableId::from_bytes(self.0[1..17].try_into().expect("the header has a table id"))
    }

    /// The schema version with which it was made.
    pub fn schema_version(&self) -> SchemaVersion {
        SchemaVersion::from_bytes(self.0[17..33].try_into().expect("the header has a schema version"))
    }

    /// The partition key, a slice of the buffer.
    pub fn key(&self) -> Bytes {
        let mut reader = self.reader();
        let key = reader.bytes().expect("checked");
        self.0.slice_ref(key)
    }

    /// The partition key with its token.
    pub fn decorated_key(&self) -> DecoratedKey {
        DecoratedKey::new(self.key())
    }

    /// Its contents, as slices of the buffer.
    pub fn parts(&self) -> Parts<'_> {
        let mut reader = self.reader();
        let key = self.0.slice_ref(reader.bytes().expect("checked"));
        let tombstone = reader.tombstone().expect("checked");
        let fixed = reader.bytes().expect("checked");
        let static_row = (!fixed.is_empty()).then(|| Row(self.0.slice_ref(fixed)));
        let count = reader.u32().expect("checked");
        let range_tombstones = (0..count).map(|_| reader.range_tombstone().expect("checked")).collect();
        let rows_left = reader.u32().expect("checked");
        Parts { key, tombstone, static_row, range_tombstones, rows: Rows { reader, left: rows_left, owner: &self.0 } }
    }

    fn reader(&self) -> Reader<'_> {
        Reader { all: &self.0, rest: &self.0[HEADER..] }
    }
}

/// Checks the number of components of a clustering prefix, and the lengths of those whose type has
/// a fixed width. Rows of old compact tables have fewer components than the table.
fn check_clustering(schema: &TableSchema, prefix: &Clustering) -> Result<(), Malformed> {
    let mut components = prefix.components();
    for column in &schema.clustering {
        let Some(value) = components.next() else { break };
        check_width(&column.ty, value)?;
    }
    match components.0.is_empty() {
        true => Ok(()),
        false => Err(Malformed("clustering key: the table has fewer components")),
    }
}

/// Checks the cells of the columns that the table has. Cells of dropped columns are not stored.
fn check_cells(schema: &TableSchema, row: &Row) -> Result<(), Malformed> {
    let mut last = None;
    for cell in row.cells() {
        let Some(column) = schema.column(cell.column) else { continue };
        let is_first = last.replace(cell.column) != Some(cell.column);
        match column.ty.is_multi_cell() {
            true if cell.path.is_none() && cell.as_complex_deletion().is_none() => {
                return Err(Malformed("cell: an element of a collection has no path"));
            }
            true if !is_first && cell.as_complex_deletion().is_some() => {
                return Err(Malformed("cell: the deletion of a collection comes after its elements"));
            }
            true => {}
            false if !is_first => return Err(Malformed("cell: a column has several values in a row")),
            false => check_width(&column.ty, cell.value)?,
        }
    }
    Ok(())
}

fn check_width(ty: &CqlType, value: &[u8]) -> Result<(), Malformed> {
    match ty.fixed_width() {
        Some(width) if !value.is_empty() && value.len() != width => {
            Err(Malformed("value: its type has another length"))
        }
        _ => Ok(()),
    }
}

/// The contents of a mutation.
pub struct Parts<'a> {
    /// The partition key.
    pub key: Bytes,
    /// The partition's tombstone.
    pub tombstone: Tombstone,
    /// Changes to the static row.
    pub static_row: Option<Row>,
    /// Deletions of ranges of rows, in no order.
    pub range_tombstones: Vec<RangeTombstone>,
    /// Changes to rows, in clustering order.
    pub rows: Rows<'a>,
}

/// The rows of a mutation.
pub struct Rows<'a> {
    reader: Reader<'a>,
    left: u32,
    owner: &'a Bytes,
}

impl Iterator for Rows<'_> {
    type Item = (Clustering, Row);

    fn next(&mut self) -> Option<(Clustering, Row)> {
        self.left = self.left.checked_sub(1)?;
        let key = self.reader.bytes().expect("checked");
        let row = self.reader.bytes().expect("checked");
        Some((Clustering(self.owner.slice_ref(key)), Row(self.owner.slice_ref(row))))
    }
}

#[derive(Clone)]
struct Reader<'a> {
    all: &'a Bytes,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.rest.split_first_chunk::<N>()?;
        self.rest = tail;
        Some(*head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        let (head, tail) = self.rest.split_at_checked(len)?;
        self.rest = tail;
        Some(head)
    }

    fn tombstone(&mut self) -> Option<Tombstone> {
        let timestamp = Timestamp::from_le_bytes(self.array()?);
        Some(Tombstone { timestamp, deletion_time: Seconds::from_le_bytes(self.array()?) })
    }

    fn cut(&mut self) -> Option<ClusteringCut> {
        let [after] = self.array()?;
        let prefix = Clustering(self.all.slice_ref(self.bytes()?));
        Some(ClusteringCut { prefix, after: after != 0 })
    }

    fn range_tombstone(&mut self) -> Option<RangeTombstone> {
        Some(RangeTombstone { start: self.cut()?, end: self.cut()?, tombstone: self.tombstone()? })
    }
}

/// Collects changes to one partition and encodes them.
#[derive(Clone, Debug)]
pub struct MutationBuilder {
    out: Vec<u8>,
    tombstone: Tombstone,
    static_rows: SmallVec<[Row; 1]>,
    range_tombstones: Vec<RangeTombstone>,
    rows: Vec<(Clustering, Row)>,
}

/// The capacity for the usual size of a mutation's rows, in bytes.
const USUAL_ROWS: usize = 512;

impl MutationBuilder {
    /// A mutation of the partition with this key.
    pub fn new(table: TableId, version: SchemaVersion, key: &[u8]) -> Self {
        debug_assert!(key.len() <= MAX_KEY_BYTES, "partition keys are checked before they get here");
        let mut out = Vec::with_capacity(HEADER + key.len() + USUAL_ROWS);
        out.push(FORMAT);
        out.extend_from_slice(table.as_bytes());
        out.extend_from_slice(version.as_bytes());
        push_bytes(&mut out, key);
        MutationBuilder {
            out,
            tombstone: Tombstone::LIVE,
            static_rows: SmallVec::new(),
            range_tombstones: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Deletes the partition.
    pub fn delete_partition(&mut self, tombstone: Tombstone) {
        self.tombstone = self.tombstone.max(tombstone);
    }

    /// Changes the static row.
    pub fn static_row(&mut self, row: Row) {
        self.static_rows.push(row);
    }

    /// Deletes a range of rows.
    pub fn delete_range(&mut self, range: RangeTombstone) {
        self.range_tombstones.push(range);
    }

    /// Changes a row.
    pub fn row(&mut self, key: Clustering, row: Row) {
        self.rows.push((key, row));
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.tombstone.is_live()
            && self.static_rows.is_empty()
            && self.range_tombstones.is_empty()
            && self.rows.is_empty()
    }

    /// The encoded mutation. Rows are sorted, and several changes of one row are merged.
    pub fn finish(mut self, schema: &TableSchema) -> Mutation {
        debug_assert_eq!(&self.out[1..17], schema.id.as_bytes(), "a mutation is encoded with the schema of its table");
        if self.rows.len() > 1 {
            self.rows.sort_by(|a, b| schema.order.compare_rows(&a.0, &b.0));
            self.rows = merge_equal(schema, self.rows);
        }
        let is_sorted = |pair: &[(Clustering, Row)]| schema.order.compare_rows(&pair[0].0, &pair[1].0).is_lt();
        debug_assert!(self.rows.windows(2).all(is_sorted), "a mutation has each row once, in clustering order");
        let static_row = match self.static_rows.len() {
            0 | 1 => self.static_rows.pop(),
            _ => row::merge_all(schema, self.static_rows.into_vec()),
        };
        let mut out = self.out;
        push_tombstone(&mut out, self.tombstone);
        push_bytes(&mut out, static_row.as_ref().map_or(&[], |row| &row.0));
        out.extend_from_slice(&(self.range_tombstones.len() as u32).to_le_bytes());
        for range in &self.range_tombstones {
            for cut in [&range.start, &range.end] {
                out.push(cut.after as u8);
                push_bytes(&mut out, &cut.prefix.0);
            }
            push_tombstone(&mut out, range.tombstone);
        }
        out.extend_from_slice(&(self.rows.len() as u32).to_le_bytes());
        for (key, row) in &self.rows {
            push_bytes(&mut out, &key.0);
            push_bytes(&mut out, &row.0);
        }
        debug_assert!(Mutation::parse(Bytes::copy_from_slice(&out)).is_ok(), "an encoded mutation can be parsed");
        Mutation(out.into())
    }
}

/// Merges adjacent rows with the same clustering key. All versions of a row are merged at once,
/// because a batch may have many thousands.
fn merge_equal(schema: &TableSchema, rows: Vec<(Clustering, Row)>) -> Vec<(Clustering, Row)> {
    let same = |a: &(Clustering, Row), b: &(Clustering, Row)| schema.order.compare_rows(&a.0, &b.0).is_eq();
    if !rows.windows(2).any(|pair| same(&pair[0], &pair[1])) {
        return rows;
    }
    let merged = |versions: &[(Clustering, Row)]| {
        let (key, _) = versions.first()?;
        let row = row::merge_all(schema, versions.iter().map(|(_, row)| row.clone()).collect())?;
        Some((key.clone(), row))
    };
    rows.chunk_by(same).filter_map(merged).collect()
}

fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn push_tombstone(out: &mut Vec<u8>, tombstone: Tombstone) {
    out.extend_from_slice(&tombstone.timestamp.to_le_bytes());
    out.extend_from_slice(&tombstone.deletion_time.to_le_bytes());
}
