//! The sstables that a compaction writes: one, or several if each ends at a given size.
//!
//! Sealing begins when all of them are complete, so an error before leaves nothing on disk. A crash
//! during sealing leaves some outputs together with all inputs: the same data twice.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::memtable::Interval;
use crate::metrics::Writing;
use crate::table::{Attached, Table};
use model::fragment::Fragment;
use model::schema::TableSchema;
use sstable::{Sstable, SstablePath, Unsealed, Writer, WriterOptions, seal_all};
use std::collections::VecDeque;
use std::rc::Rc;

/// See the module. Must be finished or abandoned.
pub(super) struct Outputs<'a> {
    engine: &'a Engine,
    table: &'a Table,
    schema: Rc<TableSchema>,
    options: WriterOptions,
    /// The size at which the next sstable is begun.
    split: Option<u64>,
    intervals: Vec<Interval>,
    current: Option<(Writer, Writing)>,
    complete: Vec<Unsealed>,
}

impl<'a> Outputs<'a> {
    /// No sstable yet. Each one will cover these intervals of the commitlog.
    pub fn new(
        engine: &'a Engine,
        table: &'a Table,
        schema: Rc<TableSchema>,
        options: WriterOptions,
        split: Option<u64>,
        intervals: Vec<Interval>,
    ) -> Self {
        Outputs { engine, table, schema, options, split, intervals, current: None, complete: Vec::new() }
    }

    /// Writes all fragments of the buffer.
    pub async fn write(&mut self, buffer: &mut VecDeque<Fragment>) -> Result<(), EngineError> {
        while let Some(fragment) = buffer.pop_front() {
            if matches!(fragment, Fragment::PartitionStart { .. })
                && let (Some((writer, _)), Some(split)) = (&self.current, self.split)
                && writer.bytes_written() >= split
            {
                self.complete_current().await?;
            }
            let (writer, _) = match &mut self.current {
                Some(current) => current,
                None => {
                    let generation = sstable::Generation::fresh();
                    let options = self.options.clone();
                    let made = Writer::create(&self.table.dir, generation, self.schema.clone(), options).await?;
                    self.current.insert((made, Writing::new(self.engine.counters())))
                }
            };
            writer.push(fragment).await?;
        }
        Ok(())
    }

    async fn complete_current(&mut self) -> Result<(), EngineError> {
        let Some((writer, _writing)) = self.current.take() else { return Ok(()) };
        let covered: Vec<_> = self.intervals.iter().map(|interval| interval.to_stats()).collect();
        self.complete.extend(writer.finish_unsealed(&covered).await?);
        Ok(())
    }

    /// Seals and opens all outputs. After an error nothing is left on disk, or what may be left is
    /// among the table's leftovers.
    pub async fn finish(mut self) -> Result<Vec<Rc<Attached>>, EngineError> {
        if let Err(error) = self.complete_current().await {
            self.abandon().await;
            return Err(error);
        }
        let apart = |pair: &[Unsealed]| pair[0].outcome().last < pair[1].outcome().first;
        debug_assert!(self.complete.windows(2).all(apart), "the outputs of a compaction do not overlap");
        seal(self.engine, self.table, self.complete, &self.intervals).await
    }

    /// Aborts all outputs. Nothing is left on disk.
    pub async fn abandon(self) {
        if let Some((writer, _)) = self.current {
            writer.abort().await;
        }
        for unsealed in self.complete {
            unsealed.abort().await;
        }
    }
}

/// Seals and opens complete sstables. Each covers these intervals of the commitlog. After an error
/// nothing is left on disk, or what may be left is among the table's leftovers.
pub(super) async fn seal(
    engine: &Engine,
    table: &Table,
    complete: Vec<Unsealed>,
    intervals: &[Interval],
) -> Result<Vec<Rc<Attached>>, EngineError> {
    let place = |unsealed: &Unsealed| SstablePath::new(&table.dir, unsealed.outcome().generation);
    let places: Vec<SstablePath> = complete.iter().map(place).collect();
    let sealed = seal_and_open(engine, table, complete, intervals).await;
    if sealed.is_err() {
        for place in places {
            if let Err(error) = sstable::directory::remove(&place).await {
                table.leftovers.not_removed(place, &error);
            }
        }
    }
    sealed
}

async fn seal_and_open(
    engine: &Engine,
    table: &Table,
    complete: Vec<Unsealed>,
    intervals: &[Interval],
) -> Result<Vec<Rc<Attached>>, EngineError> {
    let mut attached = Vec::with_capacity(complete.len());
    for sealed in seal_all(complete).await? {
        let sstable = Sstable::open(&table.dir, sealed.generation, engine.cache()).await?;
        attached.push(Attached::new(sstable, intervals.to_vec()));
    }
    Ok(attached)
}
