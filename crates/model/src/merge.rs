//! Merges several fragment streams into one: the pure half of every reader.
//!
//! The caller fills buffers and requests steps. The merger says which buffer it needs next. Inputs
//! must keep the order of [`crate::fragment`] under the same clustering order. Where only one input
//! has a partition, its fragments pass through.

mod versions;

pub use versions::LargeRow;

use crate::fragment::Fragment;
use crate::key::{ClusteringCut, DecoratedKey};
use crate::row::Row;
use crate::schema::{ClusteringOrder, TableSchema};
use crate::time::Tombstone;
use std::collections::VecDeque;
use std::rc::Rc;
use versions::Versions;

/// The next step of a merge.
#[derive(Debug)]
pub enum Step {
    /// The buffer of input `i` is empty: fill it, or call [`Merger::finish`].
    Need(usize),
    /// The next fragment.
    Emit(Fragment),
    /// A large row. The caller merges its versions before the next step.
    Merge(Box<LargeRow>),
    /// Every input is finished.
    End,
}

#[derive(Default)]
struct Input {
    buffer: VecDeque<Fragment>,
    finished: bool,
    /// Whether it is inside the current partition.
    active: bool,
    open: Tombstone,
}

impl Default for Tombstone {
    fn default() -> Self {
        Tombstone::LIVE
    }
}

/// The state of an input after [`Merger::dissolve`].
#[derive(Debug, Default)]
pub struct Rest {
    /// Fragments that were not merged yet.
    pub buffer: VecDeque<Fragment>,
    /// Whether the source has nothing after the buffer.
    pub finished: bool,
    /// Whether it is inside the partition that was being merged: the buffer continues in the middle
    /// of it.
    pub active: bool,
    /// Its open range tombstone there.
    pub open: Tombstone,
}

/// The result of [`Rest::absorb`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Absorbed {
    /// The next fragment is after the cut, or there is none.
    Reached,
    /// The buffer is empty, and the source may have more.
    Need,
}

impl Rest {
    /// Drops the fragments of the current partition up to a cut, and tracks the open range
    /// tombstone.
    pub fn absorb(&mut self, order: &ClusteringOrder, cut: &ClusteringCut) -> Absorbed {
        while let Some(fragment) = self.buffer.front() {
            match fragment.position() {
                Some(position) if order.compare(position, cut.position()).is_le() => {}
                // The static row was merged already.
                None if matches!(fragment, Fragment::Static(_)) => {}
                _ => return Absorbed::Reached,
            }
            if let Some(Fragment::Change { tombstone, .. }) = self.buffer.pop_front() {
                self.open = tombstone;
            }
        }
        if self.finished { Absorbed::Reached } else { Absorbed::Need }
    }

    /// Drops the rest of the current partition, including its end. False: the end is not in the
    /// buffer, which is empty now.
    pub fn leave(&mut self) -> bool {
        self.active = false;
        self.open = Tombstone::LIVE;
        match self.buffer.iter().position(|fragment| matches!(fragment, Fragment::PartitionEnd)) {
            Some(end) => {
                self.buffer.drain(..=end);
                true
            }
            None => {
                self.buffer.clear();
                self.finished
            }
        }
    }

    /// Restarts the current partition at a cut, after everything before it was absorbed, with this
    /// tombstone and static row, and the range tombstone that is open there. If the input had left
    /// the partition already, only its end follows.
    pub fn begin_again(&mut self, key: DecoratedKey, tombstone: Tombstone, fixed: Option<Row>, cut: &ClusteringCut) {
        if !self.active || self.buffer.is_empty() {
            self.buffer.push_front(Fragment::PartitionEnd);
        } else if !self.open.is_live() {
            self.buffer.push_front(Fragment::Change { at: cut.clone(), tombstone: self.open });
        }
        if let Some(row) = fixed {
            self.buffer.push_front(Fragment::Static(row));
        }
        self.buffer.push_front(Fragment::PartitionStart { key, tombstone });
        (self.active, self.open) = (false, Tombstone::LIVE);
    }
}

/// Merges streams of one table.
pub struct Merger {
    schema: Rc<TableSchema>,
    order: ClusteringOrder,
    inputs: Vec<Input>,
    in_partition: bool,
    header_done: bool,
    open: Tombstone,
}

impl Merger {
    /// A merger of `inputs` streams, whose rows are in `order` (the schema's or its reverse).
    pub fn new(schema: Rc<TableSchema>, order: ClusteringOrder, inputs: usize) -> Self {
        debug_assert_eq!(order.len(), schema.clustering.len(), "rows are compared by all clustering columns");
        Merger {
            schema,
            order,
            inputs: (0..inputs).map(|_| Input::default()).collect(),
            in_partition: false,
            header_done: false,
            open: Tombstone::LIVE,
        }
    }

    /// The buffer of input `i`, to be filled by its source.
    pub fn buffer(&mut self, i: usize) -> &mut VecDeque<Fragment> {
        &mut self.inputs[i].buffer
    }

    /// Declares that input `i` has nothing after its buffer.
    pub fn finish(&mut self, i: usize) {
        self.inputs[i].finished = true;
    }

    /// Returns the states of the inputs, in order.
    pub fn dissolve(self) -> impl Iterator<Item = Rest> {
        self.inputs.into_iter().map(|input| Rest {
            buffer: input.buffer,
            finished: input.finished,
            active: input.active,
            open: input.open,
        })
    }

    /// The approximate number of bytes in the buffers.
    pub fn weight(&self) -> usize {
        self.inputs.iter().flat_map(|input| &input.buffer).map(Fragment::weight).sum()
    }

    /// Skips the rest of the current partition, including its end. Returns the inputs whose sources
    /// are still inside it and must skip to their next partition. No `PartitionEnd` is emitted.
    pub fn skip_partition(&mut self) -> Vec<usize> {
        debug_assert!(
            self.in_partition || self.inputs.iter().all(|input| !input.active),
            "only an open partition is skipped"
        );
        let mut inside = Vec::new();
        for (i, input) in self.inputs.iter_mut().enumerate() {
            if !input.active {
                continue;
            }
            match input.buffer.iter().position(|fragment| matches!(fragment, Fragment::PartitionEnd)) {
                Some(end) => drop(input.buffer.drain(..=end)),
                None => {
                    input.buffer.clear();
                    inside.push(i);
                }
            }
            input.active = false;
            input.open = Tombstone::LIVE;
        }
        self.in_partition = false;
        self.open = Tombstone::LIVE;
        inside
    }

    /// The schema of the rows.
    pub fn schema(&self) -> &TableSchema {
        &self.schema
    }

    /// The next step.
    pub fn step(&mut self) -> Step {
        loop {
            if !self.in_partition {
                return self.next_partition();
            }
            let mut heads = 0;
            let mut only = 0;
            for (i, input) in self.inputs.iter_mut().enumerate() {
                if !input.active {
                    continue;
                }
                match input.buffer.front() {
                    None if input.finished => {
                        // A source that ends inside of a partition (a slice that was cut) ends the
                        // partition too.
                        input.active = false;
                        input.open = Tombstone::LIVE;
                    }
                    None => return Step::Need(i),
                    Some(Fragment::PartitionEnd) => {
                        input.buffer.pop_front();
                        input.active = false;
                        input.open = Tombstone::LIVE;
                    }
                    Some(_) => {
                        heads += 1;
                        only = i;
                    }
                }
            }
            if heads == 0 {
                self.in_partition = false;
                self.open = Tombstone::LIVE;
                return Step::Emit(Fragment::PartitionEnd);
            }
            if !self.header_done {
                self.header_done = true;
                if let Some(step) = self.static_row() {
                    return step;
                }
                continue;
            }
            if heads == 1 {
                if let Some(fragment) = self.next_of_one(only) {
                    return Step::Emit(fragment);
                }
                continue;
            }
            if let Some(step) = self.next_of_several() {
                return step;
            }
        }
    }

    fn next_partition(&mut self) -> Step {
        let is_outside = |input: &Input| !input.active && input.open.is_live();
        debug_assert!(self.inputs.iter().all(is_outside), "between partitions, no input is inside of one");
        debug_assert!(self.open.is_live(), "between partitions, no range deletion is open");
        let mut least: Option<DecoratedKey> = None;
        for (i, input) in self.inputs.iter().enumerate() {
            match input.buffer.front() {
                None if input.finished => {}
                None => return Step::Need(i),
                Some(Fragment::PartitionStart { key, .. }) => {
                    if least.as_ref().is_none_or(|least| key < least) {
                        least = Some(key.clone());
                    }
                }
                Some(other) => unreachable!("a partition begins with its start, not {other:?}"),
            }
        }
        let Some(key) = least else { return Step::End };
        let mut merged = Tombstone::LIVE;
        for input in &mut self.inputs {
            input.active =
                matches!(input.buffer.front(), Some(Fragment::PartitionStart { key: own, .. }) if *own == key);
            if let (true, Some(Fragment::PartitionStart { tombstone, .. })) = (input.active, input.buffer.front()) {
                merged = merged.max(*tombstone);
                input.buffer.pop_front();
            }
        }
        self.in_partition = true;
        self.header_done = false;
        Step::Emit(Fragment::PartitionStart { key, tombstone: merged })
    }

    fn static_row(&mut self) -> Option<Step> {
        let mut merged: Option<Versions<'_>> = None;
        for input in self.inputs.iter_mut().filter(|input| input.active) {
            if let Some(Fragment::Static(_)) = input.buffer.front()
                && let Some(Fragment::Static(row)) = input.buffer.pop_front()
            {
                match &mut merged {
                    None => merged = Some(Versions::new(&self.schema, row)),
                    Some(versions) => versions.add(row),
                }
            }
        }
        merged.map(|versions| versions.step(None))
    }

    fn next_of_one(&mut self, i: usize) -> Option<Fragment> {
        let input = &mut self.inputs[i];
        let fragment = input.buffer.pop_front()?;
        let Fragment::Change { at, tombstone } = fragment else { return Some(fragment) };
        input.open = tombstone;
        if tombstone == self.open {
            return None;
        }
        self.open = tombstone;
        Some(Fragment::Change { at, tombstone })
    }

    fn next_of_several(&mut self) -> Option<Step> {
        let mut least: Option<usize> = None;
        let mut ties = 0u32;
        for i in 0..self.inputs.len() {
            if !self.inputs[i].active {
                continue;
            }
            let Some(position) = self.inputs[i].buffer.front().and_then(Fragment::position) else {
                unreachable!("after the static row come rows and changes")
            };
            let order = match least {
                None => std::cmp::Ordering::Less,
                Some(j) => {
                    let best = self.inputs[j].buffer.front().and_then(Fragment::position).expect("it has a position");
                    self.order.compare(position, best)
                }
            };
            match order {
                std::cmp::Ordering::Less => (least, ties) = (Some(i), 0),
                std::cmp::Ordering::Equal => ties += 1,
                std::cmp::Ordering::Greater => {}
            }
        }
        let first = least.expect("there are several heads");
        let fragment = self.inputs[first].buffer.pop_front().expect("it has a head");
        match fragment {
            Fragment::Row { key, row } => {
                let mut versions = Versions::new(&self.schema, row);
                for i in first + 1..self.inputs.len() {
                    if ties == 0 {
                        break;
                    }
                    let same = self.inputs[i].active
                        && matches!(self.inputs[i].buffer.front(),
                            Some(Fragment::Row { key: other, .. }) if self.order.compare_rows(&key, other).is_eq());
                    if same && let Some(Fragment::Row { row: other, .. }) = self.inputs[i].buffer.pop_front() {
                        versions.add(other);
                        ties -= 1;
                    }
                }
                debug_assert_eq!(ties, 0, "all versions of a row are merged");
                Some(versions.step(Some(key)))
            }
            Fragment::Change { at, tombstone } => {
                self.inputs[first].open = tombstone;
                for i in first + 1..self.inputs.len() {
                    let input = &mut self.inputs[i];
                    if ties > 0
                        && input.active
                        && let Some(Fragment::Change { at: other, tombstone }) = input.buffer.front()
                        && at.cmp(&self.order, other).is_eq()
                    {
                        input.open = *tombstone;
                        input.buffer.pop_front();
                        ties -= 1;
                    }
                }
                debug_assert_eq!(ties, 0, "all changes at one position are merged");
                let merged =
                    self.inputs.iter().filter(|i| i.active).fold(Tombstone::LIVE, |t, input| t.max(input.open));
                if merged == self.open {
                    return None;
                }
                self.open = merged;
                Some(Step::Emit(Fragment::Change { at, tombstone: merged }))
            }
            other => unreachable!("no position in {other:?}"),
        }
    }
}

/// Merges complete streams in memory. For tests, tools and small inputs.
pub fn merge_all(schema: &Rc<TableSchema>, order: &ClusteringOrder, streams: Vec<Vec<Fragment>>) -> Vec<Fragment> {
    let mut merger = Merger::new(schema.clone(), order.clone(), streams.len());
    for (i, stream) in streams.into_iter().enumerate() {
        merger.buffer(i).extend(stream);
        merger.finish(i);
    }
    let mut out = Vec::new();
    loop {
        match merger.step() {
            Step::Emit(fragment) => out.push(fragment),
            Step::Merge(mut large) => out.push(loop {
                if let Some(fragment) = large.run(schema) {
                    break fragment;
                }
            }),
            Step::End => return out,
            Step::Need(i) => unreachable!("input {i} is finished"),
        }
    }
}
