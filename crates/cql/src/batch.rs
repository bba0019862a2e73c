//! BATCH: several modifications as one write, with one mutation for each partition.

use crate::api::{BatchKind, ResultKind, StatementResult};
use crate::batch_limit::BatchLimit;
use crate::error::Error;
use crate::large_data;
use crate::modify::build::Inputs;
use crate::modify::execute::{LARGE_EXPANSION, default_timestamp, is_each_once};
use crate::modify::json::JsonValues;
use crate::modify::read_first::read_first;
use crate::modify::{Modify, Room};
use crate::request::{Request, write_error};
use crate::term::Env;
use coordinator::{CoordinatorError, RequestOptions, WriteKind};
use model::TableSchema;
use model::id::TableId;
use model::key::DecoratedKey;
use model::mutation::MutationBuilder;
use replica::{LargeKinds, Mutations};
use rt::hash::HashMap;
use rt::time::Duration;
use smallvec::SmallVec;
use std::rc::Rc;

/// One statement of a batch with its values.
pub struct Part<'a> {
    /// The statement.
    pub modify: &'a Modify,
    /// The values of its variables.
    pub env: Env<'a>,
}

/// The attributes of a batch.
pub struct BatchAttributes {
    /// Its kind.
    pub kind: BatchKind,
    /// Its USING TIMESTAMP.
    pub timestamp: Option<i64>,
    /// Its USING TIMEOUT.
    pub timeout: Option<Duration>,
}

/// The number of statements between two yields.
const PARTS_PER_LOOK: usize = 16;

/// The kind of write of a batch with `mutations` mutations.
fn write_kind(kind: BatchKind, counters: bool, mutations: usize) -> WriteKind {
    match kind {
        _ if counters => WriteKind::Counter,
        BatchKind::Logged if mutations > 1 => WriteKind::LoggedBatch,
        _ => WriteKind::UnloggedBatch,
    }
}

/// Fails after the deadline.
fn check_time(options: &RequestOptions, schema: &TableSchema, kind: WriteKind) -> Result<(), Error> {
    if !options.context.deadline.is_past() {
        return Ok(());
    }
    let consistency = options.consistency;
    let error = CoordinatorError::Timeout { consistency, required: 1, received: 0, data_present: false };
    Err(write_error(error, schema, kind))
}

/// Yields if the batch has run for long. Returns the number of parts until the next call.
async fn yield_if_late(options: &RequestOptions, schema: &TableSchema, kind: WriteKind) -> Result<usize, Error> {
    if !rt::task::is_time_to_yield() {
        return Ok(PARTS_PER_LOOK);
    }
    rt::task::yield_now().await;
    check_time(options, schema, kind)?;
    // Parts can be slow, of functions of large values.
    Ok(1)
}

/// Executes a batch. Each partition gets one mutation, so no statement sees this batch partly
/// applied within a partition.
pub async fn execute(
    parts: &[Part<'_>],
    whole: &BatchAttributes,
    request: &Request<'_>,
) -> Result<StatementResult, Error> {
    let counters = check_counters(whole.kind, whole.timestamp.is_some(), parts.iter().map(|part| part.modify.counter))?;
    request.check_write_level()?;
    let config = request.config;
    let warning = config.guardrails.check_write_level(request.params.consistency)?;
    let now = rt::time::wall_micros();
    let default = match whole.timestamp {
        Some(timestamp) => timestamp,
        None => default_timestamp(request)?,
    };
    let timeout = if counters { config.counter_write_timeout } else { config.write_timeout };
    let mut options = request.options(whole.timeout.unwrap_or(timeout))?;
    let mut answer = StatementResult::new(ResultKind::Void);
    answer.warnings.extend(warning);
    let mut partitions: Vec<(Rc<TableSchema>, DecoratedKey, MutationBuilder)> = Vec::new();
    let mut places: HashMap<(TableId, bytes::Bytes), usize> = HashMap::default();
    let of_parts = parts.iter().map(|part| (part.modify, part.env));
    let (mut limit, mut room) = (BatchLimit::new(of_parts, whole.kind, request).await?, Room::of(config));
    let (mut turn, mut expansion, mut next_look) = (None, 0usize, PARTS_PER_LOOK);
    let kind = write_kind(whole.kind, counters, parts.len());
    for (i, Part { modify, env }) in parts.iter().enumerate() {
        if i >= next_look {
            next_look = i + yield_if_late(&options, &modify.schema, kind).await?;
        }
        let json = match &modify.json {
            // The turn is free for the text, which needs it by itself.
            Some(json) => {
                drop(turn.take());
                Some(Box::pin(json.bind(*env, request)).await?)
            }
            None => None,
        };
        let env = &json.as_ref().map_or(*env, JsonValues::env);
        let (stamp, capped) = modify.stamp(*env, default, now, request)?;
        if capped {
            answer.warnings.push(modify.capped_warning());
        }
        let keys = modify.keys(*env)?;
        limit.count(modify, &keys, kind, request, &mut options).await?;
        let rows = modify.rows(*env)?;
        expansion = expansion.saturating_add(modify.expansion(&keys, &rows, *env));
        if turn.is_none() && expansion > LARGE_EXPANSION {
            turn = Some(request.turn(&options.context.deadline).await?);
        }
        let schema = &modify.schema;
        let evaluated = match modify.slow {
            true => Box::pin(modify.evaluate_paced(*env, &options, kind)).await?,
            false => None,
        };
        for key in keys {
            let prior = match &modify.read_first {
                Some(wanted) => Some(read_first(modify, wanted, &key, &rows, stamp.now, request, &options).await?),
                None => None,
            };
            let place = *places.entry((schema.id, key.key.clone())).or_insert_with(|| {
                let mutation = MutationBuilder::new(schema.id, schema.version, &key.key);
                partitions.push((schema.clone(), key.clone(), mutation));
                partitions.len() - 1
            });
            let inputs = Inputs { env: *env, stamp: &stamp, prior: prior.as_ref(), evaluated: evaluated.as_ref() };
            modify.fill(&mut partitions[place].2, &key, &rows, &inputs, &mut room)?;
        }
    }
    let mut large = LargeKinds::default();
    let mut mutations = Mutations::new();
    let mut tables: SmallVec<[Rc<TableSchema>; 1]> = SmallVec::new();
    for (schema, key, mutation) in partitions {
        if !mutation.is_empty() {
            let mutation = mutation.finish(&schema);
            if large_data::is_checked(&schema) {
                let guardrails = &config.guardrails;
                large = large.with(guardrails.large_data.check(&schema, &mutation, &guardrails.violations)?);
                options.context.large_data.get_or_insert_default();
            }
            mutations.push((mutation, key));
            if tables.iter().all(|other| other.id != schema.id) {
                tables.push(schema);
            }
        }
    }
    let Some(schema) = tables.first() else { return Ok(answer) };
    check_size(&mutations, &tables, request, &mut answer)?;
    if counters {
        request.check_counter_level(&schema.name)?;
    }
    let kind = write_kind(whole.kind, counters, mutations.len());
    let written = request.coordinator.write(mutations, kind, &options).await;
    written.map_err(|error| write_error_of(error, &tables, schema, kind))?;
    if let Some(found) = &options.context.large_data {
        large = large.with(found.get());
    }
    answer.warnings.extend(config.guardrails.large_data.warning(large));
    Ok(answer)
}

/// The error of a batch: of the table that it names, otherwise of `first`.
fn write_error_of(error: CoordinatorError, tables: &[Rc<TableSchema>], first: &TableSchema, kind: WriteKind) -> Error {
    let named = match &error {
        CoordinatorError::RateLimited { refused, .. } => tables.iter().find(|table| table.id == refused.table),
        _ => None,
    };
    write_error(error, named.map_or(first, |table| table), kind)
}

/// Whether a batch updates counters. `each` gives this for each of its statements, `timestamp` says
/// whether the batch has a timestamp. Counters and other columns must not be mixed: repeating a
/// counter update counts twice.
pub fn check_counters(kind: BatchKind, timestamp: bool, each: impl Iterator<Item = bool>) -> Result<bool, Error> {
    let (mut counters, mut others) = (false, false);
    each.for_each(|counter| if counter { counters = true } else { others = true });
    let why = match kind {
        BatchKind::Counter if timestamp => "Cannot provide custom timestamp for counter BATCH",
        _ if counters && timestamp => "Cannot provide custom timestamp for a BATCH containing counters",
        BatchKind::Counter if others => "Cannot include non-counter statement in a counter batch",
        BatchKind::Logged if counters => "Cannot include a counter statement in a logged batch",
        _ if counters && others => "Counter and non-counter mutations cannot exist in the same batch",
        _ => return Ok(counters),
    };
    Err(Error::invalid(why))
}

/// Warns about large batches of several partitions, and refuses them beyond a limit.
fn check_size(
    mutations: &Mutations,
    tables: &[Rc<TableSchema>],
    request: &Request<'_>,
    answer: &mut StatementResult,
) -> Result<(), Error> {
    debug_assert!(is_each_once(mutations), "a batch has one mutation of each partition");
    if mutations.len() <= 1 {
        return Ok(());
    }
    let size: usize = mutations.iter().map(|(mutation, _)| mutation.as_bytes().len()).sum();
    let config = request.config;
    if size > config.batch_size_fail {
        return Err(Error::invalid("Batch too large"));
    }
    if size > config.batch_size_warn {
        let names: Vec<String> = tables.iter().map(|schema| format!("{}.{}", schema.keyspace, schema.name)).collect();
        answer.warnings.push(format!(
            "Batch modifying {} partitions in {} is of size {size} bytes, exceeding specified WARN threshold of {} by {}.",
            mutations.len(),
            names.join(", "),
            config.batch_size_warn,
            size - config.batch_size_warn
        ));
    }
    Ok(())
}
