//! Reads lists before their elements are changed by index or value.
//!
//! Other writes may happen between the read and the write. As in ScyllaDB, such operations are not
//! isolated.

use super::{Modify, ReadFirst};
use crate::error::Error;
use crate::request::{Request, read_error};
use crate::restrictions::Rows;
use bytes::Bytes;
use coordinator::{Consistency, Counting, PageRequest, Query, QueryPartitions, RequestOptions};
use model::id::ColumnId;
use model::key::{self, DecoratedKey};
use model::range::Slice;
use model::schema::ClusteringOrder;
use smallvec::SmallVec;
use std::rc::Rc;

/// The data that was read of a partition: the elements of the lists of each row, in the table's
/// order.
pub struct Prior {
    rows: Vec<(key::Clustering, Vec<(ColumnId, Bytes)>)>,
}

impl Prior {
    /// The lists of a row. `None` if the row does not exist. Rows are found by their order: the
    /// decimals 1 and 1.0 are one row.
    pub fn of(&self, row: &key::Clustering, order: &ClusteringOrder) -> Option<&[(ColumnId, Bytes)]> {
        let at = self.rows.binary_search_by(|(known, _)| order.compare_rows(known, row)).ok()?;
        Some(&self.rows[at].1)
    }
}

/// Reads the lists of a partition that the statement needs. Callers read one partition at a time,
/// because lists may be large.
pub async fn read_first(
    modify: &Modify,
    wanted: &ReadFirst,
    key: &DecoratedKey,
    rows: &Rows,
    now: i32,
    request: &Request<'_>,
    options: &RequestOptions,
) -> Result<Prior, Error> {
    let schema = &modify.schema;
    let table = request.metadata().table_by_id(schema.id).cloned();
    let table = table.ok_or_else(|| Error::invalid(format!("unconfigured table {}", schema.name)))?;
    let mut options = options.clone();
    if options.consistency == Consistency::Any {
        options.consistency = Consistency::One;
    }
    let ranges = if wanted.statics { Vec::new() } else { rows.clone().into_ranges() };
    let query = Query {
        table,
        partitions: QueryPartitions::Keys(SmallVec::from_iter([key.clone()])),
        slice: Rc::new(Slice { rows: ranges, static_row: wanted.statics, reversed: false, resume: None }),
        output: wanted.output.clone(),
        limit: None,
        per_partition_limit: None,
        now,
        bypass_cache: false,
    };
    // The write is counted, not this read.
    let all = PageRequest { counting: Counting::Accepted, ..PageRequest::default() };
    let page = request.coordinator.read(&query, &all, &options).await;
    let page = page.map_err(|error| read_error(error, schema))?;
    let body = page.body;
    let mut rest = &body[..];
    let mut prior = Prior { rows: Vec::new() };
    for _ in 0..page.rows {
        let mut row_key = Vec::new();
        if !wanted.statics {
            for _ in &schema.clustering {
                key::push_component(&mut row_key, take(&mut rest).unwrap_or_default());
            }
        }
        let lists =
            wanted.columns.iter().map(|id| (*id, take(&mut rest).map_or_else(Bytes::new, |list| body.slice_ref(list))));
        let lists = lists.collect();
        prior.rows.push((key::Clustering(row_key.into()), lists));
    }
    debug_assert!(rest.is_empty() && page.next.is_none(), "an unpaged read returns all rows, each complete");
    Ok(prior)
}

/// The next value of a body that was encoded by this cluster.
fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, tail) = rest.split_first_chunk::<4>().expect("rows are whole");
    let Ok(len) = usize::try_from(i32::from_be_bytes(*len)) else {
        *rest = tail;
        return None;
    };
    let (value, tail) = tail.split_at(len);
    *rest = tail;
    Some(value)
}
