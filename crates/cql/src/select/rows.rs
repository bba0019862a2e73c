//! Rows in the protocol's encoding: decodes the rows of replicas, and emits the rows of the result.

use super::aggregate::State;
use super::selector::{Row, Selector};
use super::{Select, Shape, SortKey};
use crate::error::Error;
use crate::restrictions::filter::BoundFilter;
use crate::term::Env;
use bytes::Bytes;
use model::types::compare;
use replica::output::write_value;
use replica::reduce::values;
use std::cmp::Ordering;

/// The output columns of one row.
pub type Slots = Vec<Option<Bytes>>;

/// Decodes a body of rows with `columns` values each, one row at a time.
pub struct Body {
    rest: Bytes,
    columns: usize,
    rows: u64,
}

impl Body {
    /// A body of rows that was encoded by a replica of this cluster.
    pub fn new(body: Bytes, columns: usize, rows: u64) -> Self {
        Body { rest: body, columns, rows }
    }

    /// Decodes the next row into `slots`. False at the end.
    pub fn next_row(&mut self, slots: &mut Slots) -> bool {
        let Some(left) = self.rows.checked_sub(1) else { return false };
        self.rows = left;
        slots.clear();
        for _ in 0..self.columns {
            let head = self.rest.split_to(4);
            let len = i32::from_be_bytes(head[..].try_into().expect("rows are whole"));
            slots.push(usize::try_from(len).ok().map(|len| self.rest.split_to(len)));
        }
        true
    }
}

/// Filters and limits rows, and turns them into rows of the result or into aggregates.
pub struct Emitter<'a> {
    select: &'a Select,
    env: Env<'a>,
    filters: Vec<BoundFilter>,
    /// Rows that may still be emitted.
    pub remaining: u64,
    per_partition: u64,
    /// The encoded key of the last row's partition, and how many rows of it were emitted.
    pub partition: (Vec<u8>, u64),
    /// Rows emitted.
    pub rows: u64,
    /// The rows of the result.
    pub body: Vec<u8>,
    aggregates: Vec<State<'a>>,
    /// The first row of the current group.
    first: Option<Slots>,
    /// The number of groups after which a page is full.
    pub most_groups: u64,
    /// The last row taken. Set only if the number of groups per page is limited.
    pub last: Slots,
    unsorted: Vec<Slots>,
    /// Bytes of `unsorted`.
    unsorted_bytes: usize,
    /// The limit on the bytes of `body`.
    max_bytes: usize,
}

impl<'a> Emitter<'a> {
    /// A new emitter. It gets only those limits that the coordinator does not apply. A result of
    /// more than `max_bytes` is an error.
    pub fn new(
        select: &'a Select,
        env: Env<'a>,
        limit: Option<u64>,
        per_partition: Option<u64>,
        max_bytes: usize,
    ) -> Result<Self, Error> {
        let filters = select.restrictions.filters.iter().map(|filter| filter.bind(env)).collect::<Result<_, _>>()?;
        Ok(Emitter {
            select,
            env,
            filters,
            remaining: limit.unwrap_or(u64::MAX),
            per_partition: per_partition.unwrap_or(u64::MAX),
            partition: (Vec::new(), 0),
            rows: 0,
            body: Vec::new(),
            aggregates: fresh(select),
            first: None,
            most_groups: u64::MAX,
            last: Vec::new(),
            unsorted: Vec::new(),
            unsorted_bytes: 0,
            max_bytes,
        })
    }

    /// The environment in which terms are evaluated.
    pub fn env(&self) -> Env<'a> {
        self.env
    }

    /// Whether rows are only counted, so that their values are not needed.
    pub fn only_counts(&self) -> bool {
        self.filters.is_empty()
            && self.per_partition == u64::MAX
            && self.select.output.columns.is_empty()
            && matches!(self.select.shape, Shape::Aggregate(..))
    }

    /// The approximate bytes of rows held here.
    pub fn bytes(&self) -> usize {
        self.body.len() + self.unsorted_bytes
    }

    /// Takes the results of replicas: the number of rows, which is all if rows are only counted,
    /// and the partial aggregates.
    pub fn take_reduced(&mut self, rows: u64, parts: &[u8]) -> Result<(), Error> {
        if self.only_counts() {
            self.aggregates.iter_mut().for_each(|aggregate| aggregate.add_rows(rows));
            return Ok(());
        }
        let mut parts = values(parts).peekable();
        while parts.peek().is_some() {
            for aggregate in &mut self.aggregates {
                let part = parts.next().ok_or_else(|| Error::Server("an owner's aggregates are not whole".into()))?;
                aggregate.add_part(part)?;
            }
        }
        Ok(())
    }

    /// Takes one row. False if it was not taken because the page of groups is full.
    pub fn push(&mut self, slots: &Slots) -> Result<bool, Error> {
        for (filter, at) in self.filters.iter().zip(&self.select.filter_slots) {
            if !filter.accepts(slots, at) {
                return Ok(true);
            }
        }
        let grouped = self.select.grouping.is_some();
        if !grouped && !self.is_within_partition(slots) {
            return Ok(true);
        }
        let aggregated = matches!(self.select.shape, Shape::Aggregate(..));
        if !self.select.sort.is_empty() && (grouped || !aggregated) {
            let values: usize = slots.iter().flatten().map(Bytes::len).sum();
            self.unsorted_bytes += values + size_of_val(&slots[..]);
            self.unsorted.push(slots.clone());
            return Ok(true);
        }
        if aggregated {
            return self.aggregate(slots);
        }
        self.emit(slots).map(|()| true)
    }

    /// Counts a row of its partition. False if the partition has reached its limit.
    fn is_within_partition(&mut self, slots: &Slots) -> bool {
        if self.per_partition == u64::MAX || self.select.key_slots.is_empty() {
            return true;
        }
        let mut key = Vec::new();
        for slot in &self.select.key_slots {
            write_value(slots[*slot].as_deref(), &mut key);
        }
        if self.partition.0 != key {
            self.partition = (key, 0);
        }
        if self.partition.1 >= self.per_partition {
            return false;
        }
        self.partition.1 += 1;
        true
    }

    /// Takes a row of the current group or of the next one.
    fn aggregate(&mut self, slots: &Slots) -> Result<bool, Error> {
        if let Some(grouping) = &self.select.grouping {
            if self.first.as_ref().is_some_and(|first| !grouping.is_same(first, slots)) {
                self.end_group()?;
            }
            if self.first.is_none() {
                if self.remaining == 0 {
                    return Ok(true);
                }
                if self.rows >= self.most_groups {
                    return Ok(false);
                }
            }
            if self.most_groups != u64::MAX {
                self.last.clone_from(slots);
            }
        }
        let row = Row { slots, aggregates: &[], env: self.env };
        for aggregate in &mut self.aggregates {
            aggregate.add(row)?;
        }
        if self.first.is_none() {
            self.first = Some(slots.clone());
        }
        Ok(true)
    }

    /// Emits the row of the current group. The group may be empty if it is the only one.
    fn end_group(&mut self) -> Result<(), Error> {
        let Shape::Aggregate(_, selectors) = &self.select.shape else { return Ok(()) };
        let results = std::mem::replace(&mut self.aggregates, fresh(self.select));
        let results = results.into_iter().map(State::finish).collect::<Result<Vec<_>, _>>()?;
        let first = self.first.take().unwrap_or_else(|| vec![None; self.select.output.columns.len()]);
        if self.select.grouping.is_some() && !self.is_within_partition(&first) {
            return Ok(());
        }
        let Some(left) = self.remaining.checked_sub(1) else { return Ok(()) };
        self.remaining = left;
        self.rows += 1;
        write_row(selectors, Row { slots: &first, aggregates: &results, env: self.env }, self.max_bytes, &mut self.body)
    }

    fn emit(&mut self, slots: &Slots) -> Result<(), Error> {
        let Some(left) = self.remaining.checked_sub(1) else { return Ok(()) };
        self.remaining = left;
        self.rows += 1;
        match &self.select.shape {
            Shape::Plain => slots.iter().for_each(|value| write_value(value.as_deref(), &mut self.body)),
            Shape::Rows(selectors) | Shape::Aggregate(_, selectors) => {
                write_row(selectors, Row { slots, aggregates: &[], env: self.env }, self.max_bytes, &mut self.body)?;
            }
        }
        Ok(())
    }

    /// Ends the result: emits the rows and groups that had to wait for the last row.
    pub fn finish(&mut self) -> Result<(), Error> {
        let mut unsorted = std::mem::take(&mut self.unsorted);
        unsorted.sort_by(|a, b| in_order(&self.select.sort, a, b));
        if !matches!(self.select.shape, Shape::Aggregate(..)) {
            return unsorted.iter().try_for_each(|slots| self.emit(slots));
        }
        for slots in &unsorted {
            self.aggregate(slots)?;
        }
        if self.select.grouping.is_none() || self.first.is_some() {
            self.end_group()?;
        }
        Ok(())
    }
}

/// The initial states of a SELECT's aggregates.
fn fresh(select: &Select) -> Vec<State<'_>> {
    match &select.shape {
        Shape::Aggregate(aggregates, _) => aggregates.iter().map(State::new).collect(),
        Shape::Plain | Shape::Rows(_) => Vec::new(),
    }
}

/// Appends a row of the result. The limit is checked after each expression, because its value can
/// be many times as long as the row.
fn write_row(selectors: &[Selector], row: Row<'_>, max_bytes: usize, out: &mut Vec<u8>) -> Result<(), Error> {
    for selector in selectors {
        write_value(selector.evaluate(row)?.as_deref(), out);
        if out.len() > max_bytes {
            return Err(Error::invalid(format!(
                "Memory usage of the result exceeds hard limit of {max_bytes} (configured via \
                 max_memory_for_unlimited_query_hard_limit)"
            )));
        }
    }
    Ok(())
}

fn in_order(keys: &[SortKey], a: &Slots, b: &Slots) -> Ordering {
    for key in keys {
        let order = match (&a[key.slot], &b[key.slot]) {
            (Some(a), Some(b)) => compare(&key.ty, a, b),
            (a, b) => a.is_some().cmp(&b.is_some()),
        };
        if order != Ordering::Equal {
            return if key.descending { order.reverse() } else { order };
        }
    }
    Ordering::Equal
}
