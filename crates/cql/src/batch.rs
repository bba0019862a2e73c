//! BATCH: several modifications as one write, one mutation per partition.

use crate::api::{Answer, AnswerKind, BatchKind};
use crate::error::Error;
use crate::modify::Modify;
use crate::modify::execute::{Mutations, default_timestamp};
use crate::modify::read_first::{Prior, read_first};
use crate::request::{Request, write_error};
use crate::term::Env;
use cluster::coordinator::WriteKind;
use model::TableSchema;
use model::id::TableId;
use model::key::DecoratedKey;
use model::mutation::MutationBuilder;
use rt::hash::HashMap;
use rt::time::Duration;
use smallvec::SmallVec;
use std::rc::Rc;

/// One statement of a batch with its values.
pub struct Part<'a> {
    /// The statement.
    pub modify: &'a Modify,
    /// Its variables and their values.
    pub env: Env<'a>,
}

/// What a batch says of itself.
pub struct Whole {
    /// Its kind.
    pub kind: BatchKind,
    /// Its USING TIMESTAMP.
    pub timestamp: Option<i64>,
    /// Its USING TIMEOUT.
    pub timeout: Option<Duration>,
}

/// Statements between looks at the clock.
const PARTS_PER_LOOK: usize = 16;

/// Executes a batch. Statements of later batches never see those of this one half done within a partition.
pub async fn execute(parts: &[Part<'_>], whole: &Whole, request: &Request<'_>) -> Result<Answer, Error> {
    if whole.kind == BatchKind::Counter {
        return Err(Error::not_supported("A counter batch"));
    }
    request.check_write_level()?;
    let config = request.config;
    let now = rt::time::wall_micros();
    let default = match whole.timestamp {
        Some(timestamp) => timestamp,
        None => default_timestamp(request, now)?,
    };
    let options = request.options(whole.timeout.unwrap_or(config.write_timeout));
    let mut answer = Answer::new(AnswerKind::Void);
    let mut partitions: Vec<(Rc<TableSchema>, DecoratedKey, MutationBuilder)> = Vec::new();
    let mut places: HashMap<(TableId, bytes::Bytes), usize> = HashMap::default();
    for (i, Part { modify, env }) in parts.iter().enumerate() {
        if i % PARTS_PER_LOOK == PARTS_PER_LOOK - 1 {
            rt::task::maybe_yield().await;
        }
        let (stamp, capped) = modify.stamp(*env, default, now, config.restrict_future_timestamp)?;
        if capped {
            answer.warnings.push(modify.capped_warning());
        }
        let keys = modify.keys(*env)?;
        let rows = modify.rows(*env)?;
        let prior = match &modify.read_first {
            Some(wanted) => read_first(modify, wanted, &keys, &rows, stamp.now, request, &options).await?,
            None => Prior::default(),
        };
        let schema = &modify.schema;
        for key in keys {
            let place = *places.entry((schema.id, key.key.clone())).or_insert_with(|| {
                let mutation = MutationBuilder::new(schema.id, schema.version, &key.key);
                partitions.push((schema.clone(), key.clone(), mutation));
                partitions.len() - 1
            });
            modify.fill(&mut partitions[place].2, &key, &rows, *env, &stamp, &prior)?;
        }
    }
    let mut mutations = Mutations::new();
    let mut tables: SmallVec<[Rc<TableSchema>; 1]> = SmallVec::new();
    for (schema, key, mutation) in partitions {
        if !mutation.is_empty() {
            mutations.push((mutation.finish(&schema), key));
            if tables.iter().all(|other| other.id != schema.id) {
                tables.push(schema);
            }
        }
    }
    let Some(schema) = tables.first() else { return Ok(answer) };
    check_size(&mutations, &tables, request, &mut answer)?;
    let kind = match whole.kind {
        BatchKind::Logged if mutations.len() > 1 => WriteKind::LoggedBatch,
        _ => WriteKind::UnloggedBatch,
    };
    let written = request.coordinator.write(mutations, kind, &options).await;
    written.map_err(|error| write_error(error, schema, kind))?;
    Ok(answer)
}

/// Big batches of several partitions are warned of, and refused beyond a limit.
fn check_size(
    mutations: &Mutations,
    tables: &[Rc<TableSchema>],
    request: &Request<'_>,
    answer: &mut Answer,
) -> Result<(), Error> {
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
