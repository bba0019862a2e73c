//! Rows in the protocol's encoding: decodes the rows of replicas, and emits the rows of the result.

use super::aggregate::State;
use super::selector::{Cost, Row, Selector};
use super::sort::sorted;
use super::{Select, Shape, SortKey};
use crate::api::BoundValue;
use crate::error::Error;
use crate::pace::{LARGE_ROW_WORK, Pace, ROW_WORK};
use crate::restrictions::filter::BoundFilter;
use crate::term::{self, Env};
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

    /// Bytes of the rows that are left.
    pub fn left(&self) -> usize {
        self.rest.len()
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
    /// The cost of filters and expressions for a row.
    cost: Cost,
    /// Bytes of the statement's bound values.
    bound_bytes: usize,
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
    /// Its bytes.
    first_bytes: usize,
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
    ) -> Self {
        let bound_bytes = env.values.iter().map(BoundValue::len).sum();
        Emitter {
            select,
            env,
            filters: Vec::new(),
            cost: cost_of(select, bound_bytes),
            bound_bytes,
            remaining: limit.unwrap_or(u64::MAX),
            per_partition: per_partition.unwrap_or(u64::MAX),
            partition: (Vec::new(), 0),
            rows: 0,
            body: Vec::new(),
            aggregates: fresh(select),
            first: None,
            first_bytes: 0,
            most_groups: u64::MAX,
            last: Vec::new(),
            unsorted: Vec::new(),
            unsorted_bytes: 0,
            max_bytes,
        }
    }

    /// The environment in which terms are evaluated.
    pub fn env(&self) -> Env<'a> {
        self.env
    }

    /// Whether rows are only counted, so that their values are not needed.
    pub fn only_counts(&self) -> bool {
        let Shape::Aggregate(aggregates, _) = &self.select.shape else { return false };
        self.select.restrictions.filters.is_empty()
            && self.per_partition == u64::MAX
            && self.select.output.columns.is_empty()
            && aggregates.iter().all(|aggregate| aggregate.argument.is_none())
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

    /// Evaluates the values of the filters. Until then none is applied.
    pub async fn bind(&mut self, pace: &Pace<'_>) -> Result<(), Error> {
        let select = self.select;
        let mut held = 0;
        for filter in &select.restrictions.filters {
            let filter = filter.bind(self.env)?;
            self.cost.eighths += 8;
            self.cost.fixed = self.cost.fixed.saturating_add(filter.work());
            held += filter.held_bytes();
            term::check_bytes(held)?;
            self.filters.push(filter);
            // Each of them checks the bound value that it names.
            pace.worked(self.bound_bytes).await?;
        }
        Ok(())
    }

    /// Takes one row of `bytes` bytes. False if it was not taken because the page of groups is
    /// full. A row of much work is processed with pauses.
    pub async fn take(&mut self, slots: &Slots, bytes: usize, pace: &Pace<'_>) -> Result<bool, Error> {
        let bytes = bytes.max(self.first_bytes);
        let work = self.cost.of_row(bytes);
        if work > LARGE_ROW_WORK {
            return Box::pin(self.push_paced(slots, bytes, pace)).await;
        }
        let taken = self.push(slots)?;
        if pace.spend(ROW_WORK + work) {
            pace.pause().await?;
        }
        Ok(taken)
    }

    /// Takes one row. False if it was not taken because the page of groups is full.
    fn push(&mut self, slots: &Slots) -> Result<bool, Error> {
        for (filter, at) in self.filters.iter().zip(&self.select.filter_slots) {
            if !filter.accepts(slots, at) {
                return Ok(true);
            }
        }
        match self.admit(slots) {
            Admitted::No => Ok(true),
            Admitted::Aggregated => self.aggregate(slots),
            Admitted::Emitted => self.emit(slots).map(|()| true),
        }
    }

    async fn push_paced(&mut self, slots: &Slots, bytes: usize, pace: &Pace<'_>) -> Result<bool, Error> {
        for (filter, at) in self.filters.iter().zip(&self.select.filter_slots) {
            if !filter.accepts(slots, at) {
                return Ok(true);
            }
            pace.worked(bytes + filter.work()).await?;
        }
        match self.admit(slots) {
            Admitted::No => Ok(true),
            Admitted::Aggregated => self.aggregate_paced(slots, bytes, pace).await,
            Admitted::Emitted => self.emit_paced(slots, bytes, pace).await.map(|()| true),
        }
    }

    /// Decides whether and how a row that has passed the filters enters the result. A row that
    /// waits for its order is kept.
    fn admit(&mut self, slots: &Slots) -> Admitted {
        let grouped = self.select.grouping.is_some();
        if !grouped && !self.is_within_partition(slots) {
            return Admitted::No;
        }
        let aggregated = matches!(self.select.shape, Shape::Aggregate(..));
        if !self.select.sort.is_empty() && (grouped || !aggregated) {
            self.unsorted_bytes += bytes_of(slots) + size_of_val(&slots[..]);
            self.unsorted.push(slots.clone());
            return Admitted::No;
        }
        if aggregated { Admitted::Aggregated } else { Admitted::Emitted }
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
        if self.ends_group(slots) {
            self.end_group()?;
        }
        if let Some(taken) = self.refuses(slots) {
            return Ok(taken);
        }
        let row = Row { slots, aggregates: &[], env: self.env };
        for aggregate in &mut self.aggregates {
            aggregate.add(row)?;
        }
        self.entered(slots);
        Ok(true)
    }

    async fn aggregate_paced(&mut self, slots: &Slots, bytes: usize, pace: &Pace<'_>) -> Result<bool, Error> {
        if self.ends_group(slots) {
            self.end_group_paced(bytes, pace).await?;
        }
        if let Some(taken) = self.refuses(slots) {
            return Ok(taken);
        }
        let row = Row { slots, aggregates: &[], env: self.env };
        let mut held = 0;
        for aggregate in &mut self.aggregates {
            match aggregate.argument() {
                Some(argument) => aggregate.add_value(argument.evaluate_paced(row, bytes, pace).await?)?,
                None => aggregate.add_rows(1),
            }
            held += aggregate.held_bytes();
            check_size(held, self.max_bytes)?;
            pace.worked(bytes).await?;
        }
        self.entered(slots);
        Ok(true)
    }

    /// Whether a row is the first of another group.
    fn ends_group(&self, slots: &Slots) -> bool {
        let (Some(grouping), Some(first)) = (&self.select.grouping, &self.first) else { return false };
        !grouping.is_same(&self.select.schema, first, slots)
    }

    /// For a row that is not aggregated: whether it was taken nevertheless.
    fn refuses(&mut self, slots: &Slots) -> Option<bool> {
        self.select.grouping.as_ref()?;
        if self.first.is_none() {
            if self.remaining == 0 {
                return Some(true);
            }
            if self.rows >= self.most_groups {
                return Some(false);
            }
        }
        if self.most_groups != u64::MAX {
            self.last.clone_from(slots);
        }
        None
    }

    fn entered(&mut self, slots: &Slots) {
        if self.first.is_none() {
            self.first_bytes = bytes_of(slots);
            self.first = Some(slots.clone());
        }
    }

    /// Emits the row of the current group. The group may be empty if it is the only one.
    fn end_group(&mut self) -> Result<(), Error> {
        let Some(Closed { selectors, first, results }) = self.close_group()? else { return Ok(()) };
        write_row(selectors, Row { slots: &first, aggregates: &results, env: self.env }, self.max_bytes, &mut self.body)
    }

    async fn end_group_paced(&mut self, bytes: usize, pace: &Pace<'_>) -> Result<(), Error> {
        let Some(Closed { selectors, first, results }) = self.close_group()? else { return Ok(()) };
        let row = Row { slots: &first, aggregates: &results, env: self.env };
        let bytes = bytes + bytes_of(&results);
        write_row_paced(selectors, row, bytes, self.max_bytes, &mut self.body, pace).await
    }

    /// Ends the group at hand. None if there is no row to be made of it.
    fn close_group(&mut self) -> Result<Option<Closed<'a>>, Error> {
        let Shape::Aggregate(_, selectors) = &self.select.shape else { return Ok(None) };
        let results = std::mem::replace(&mut self.aggregates, fresh(self.select));
        let results = results.into_iter().map(State::finish).collect::<Result<Vec<_>, _>>()?;
        let first = self.first.take().unwrap_or_else(|| vec![None; self.select.output.columns.len()]);
        self.first_bytes = 0;
        if self.select.grouping.is_some() && !self.is_within_partition(&first) {
            return Ok(None);
        }
        let Some(left) = self.remaining.checked_sub(1) else { return Ok(None) };
        self.remaining = left;
        self.rows += 1;
        debug_assert!(self.rows <= self.most_groups, "a page has no more groups than are wanted");
        Ok(Some(Closed { selectors, first, results }))
    }

    fn emit(&mut self, slots: &Slots) -> Result<(), Error> {
        let Some(selectors) = self.counted(slots) else { return Ok(()) };
        write_row(selectors, Row { slots, aggregates: &[], env: self.env }, self.max_bytes, &mut self.body)
    }

    async fn emit_paced(&mut self, slots: &Slots, bytes: usize, pace: &Pace<'_>) -> Result<(), Error> {
        let Some(selectors) = self.counted(slots) else { return Ok(()) };
        let row = Row { slots, aggregates: &[], env: self.env };
        write_row_paced(selectors, row, bytes, self.max_bytes, &mut self.body, pace).await
    }

    /// Counts a row of the result, and gives the expressions that make it. None if the row is not
    /// wanted, or was written as it is.
    fn counted(&mut self, slots: &Slots) -> Option<&'a [Selector]> {
        self.remaining = self.remaining.checked_sub(1)?;
        self.rows += 1;
        match &self.select.shape {
            Shape::Plain => {
                slots.iter().for_each(|value| write_value(value.as_deref(), &mut self.body));
                None
            }
            Shape::Rows(selectors) | Shape::Aggregate(_, selectors) => Some(selectors),
        }
    }

    /// Ends the result: emits the rows and groups that had to wait for the last row.
    pub async fn finish(&mut self, pace: &Pace<'_>) -> Result<(), Error> {
        let unsorted = std::mem::take(&mut self.unsorted);
        let keys = &self.select.sort;
        let key_bytes = |slots: &Slots| keys.iter().filter_map(|key| slots[key.slot].as_ref()).map(Bytes::len).sum();
        let order = sorted(&unsorted, |a, b| in_order(keys, a, b), key_bytes, pace).await?;
        let aggregated = matches!(self.select.shape, Shape::Aggregate(..));
        for at in order {
            let slots = &unsorted[at as usize];
            let bytes = bytes_of(slots).max(self.first_bytes);
            match aggregated {
                true => drop(self.aggregate_paced(slots, bytes, pace).await?),
                false => self.emit_paced(slots, bytes, pace).await?,
            }
            pace.worked(ROW_WORK).await?;
        }
        if aggregated && (self.select.grouping.is_none() || self.first.is_some()) {
            self.end_group_paced(self.first_bytes, pace).await?;
        }
        Ok(())
    }
}

/// Whether and how a row enters the result.
enum Admitted {
    /// Nothing now.
    No,
    Aggregated,
    Emitted,
}

/// A group of which a row is to be made.
struct Closed<'a> {
    selectors: &'a [Selector],
    first: Slots,
    /// Of the aggregates.
    results: Vec<Option<Bytes>>,
}

fn bytes_of(slots: &[Option<Bytes>]) -> usize {
    slots.iter().flatten().map(Bytes::len).sum()
}

/// The work of a SELECT's expressions for a row.
fn cost_of(select: &Select, bound_bytes: usize) -> Cost {
    let mut cost = Cost::default();
    let (aggregates, selectors) = match &select.shape {
        // The columns are copied.
        Shape::Plain => (&[][..], &[][..]),
        Shape::Rows(selectors) => (&[][..], &selectors[..]),
        Shape::Aggregate(aggregates, selectors) => (&aggregates[..], &selectors[..]),
    };
    cost.eighths = aggregates.len() + 1;
    aggregates
        .iter()
        .filter_map(|aggregate| aggregate.argument.as_ref())
        .for_each(|argument| argument.add_cost(&mut cost));
    selectors.iter().for_each(|selector| selector.add_cost(&mut cost));
    cost.fixed = cost.fixed.saturating_add(cost.terms.saturating_mul(bound_bytes));
    cost
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
    selectors.iter().try_for_each(|selector| write_cell(selector.evaluate(row)?, max_bytes, out))
}

/// The same with pauses, for a row of which `bytes` are read for each value.
async fn write_row_paced(
    selectors: &[Selector],
    row: Row<'_>,
    bytes: usize,
    max_bytes: usize,
    out: &mut Vec<u8>,
    pace: &Pace<'_>,
) -> Result<(), Error> {
    for selector in selectors {
        write_cell(selector.evaluate_paced(row, bytes, pace).await?, max_bytes, out)?;
    }
    Ok(())
}

/// Appends a value of a row. An expression can be many times as long as the row, so the limit is
/// checked at each.
fn write_cell(value: Option<Bytes>, max_bytes: usize, out: &mut Vec<u8>) -> Result<(), Error> {
    write_value(value.as_deref(), out);
    check_size(out.len(), max_bytes)
}

/// An error if a result of this many bytes is too large.
fn check_size(bytes: usize, max_bytes: usize) -> Result<(), Error> {
    if bytes > max_bytes {
        return Err(Error::invalid(format!(
            "Memory usage of the result exceeds hard limit of {max_bytes} (configured via \
             max_memory_for_unlimited_query_hard_limit)"
        )));
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
