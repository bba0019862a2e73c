//! Plans INSERT, UPDATE and DELETE statements.

use super::evaluated::are_slow;
use super::json::{JsonColumns, JsonInsert};
use super::operation::Operation;
use super::{Deletion, Modify, ReadFirst, Verb};
use crate::api::ColumnSpec;
use crate::attributes::Attributes;
use crate::error::Error;
use crate::large_data;
use crate::pace::PLAN_WORK;
use crate::restrictions::{Clustering, Op, Ops, Partition, Purpose, Restrictions, analyse};
use crate::syntax::ast::{self, DeleteTarget, InsertSource, Modification};
use crate::term::{Term, Variables, prepare, prepare_paced};
use model::id::ColumnId;
use model::schema::{Column, ColumnKind};
use model::{CqlType, TableSchema};
use replica::{Output, OutputColumn};
use smallvec::smallvec;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

/// The name of the table that is modified.
pub fn table_of(statement: &Modification) -> &ast::QualifiedName {
    match statement {
        Modification::Insert(statement) => &statement.table,
        Modification::Update(statement) => &statement.table,
        Modification::Delete(statement) => &statement.table,
    }
}

/// Plans a modification of this table.
pub async fn plan(
    schema: &Rc<TableSchema>,
    statement: &Modification,
    variables: &mut Variables<'_>,
) -> Result<Modify, Error> {
    variables.of_table(schema);
    let conditional = match statement {
        Modification::Insert(statement) => statement.if_not_exists,
        Modification::Update(statement) => statement.condition.is_some(),
        Modification::Delete(statement) => statement.condition.is_some(),
    };
    if conditional && schema.is_counter() {
        return Err(Error::invalid("Conditional updates are not supported on counter tables"));
    }
    if conditional {
        return Err(Error::not_supported("A conditional statement (IF)"));
    }
    let modify = match statement {
        Modification::Insert(_) if schema.is_counter() => {
            return Err(Error::invalid("INSERT statement are not allowed on counter tables, use UPDATE instead"));
        }
        Modification::Insert(statement) => insert(schema, statement, variables).await,
        Modification::Update(statement) => update(schema, statement, variables).await,
        Modification::Delete(statement) => delete(schema, statement, variables).await,
    }?;
    if modify.counter && modify.attributes.timestamp.is_some() {
        return Err(Error::invalid("Cannot provide custom timestamp for counter updates"));
    }
    if modify.counter && modify.attributes.ttl.is_some() {
        return Err(Error::invalid("Cannot provide custom TTL for counter updates"));
    }
    Ok(modify)
}

fn column<'s>(schema: &'s TableSchema, name: &str) -> Result<&'s Column, Error> {
    schema.column_named(name).ok_or_else(|| Error::invalid(format!("Unknown identifier {name}")))
}

async fn insert(
    schema: &Rc<TableSchema>,
    statement: &ast::Insert,
    variables: &mut Variables<'_>,
) -> Result<Modify, Error> {
    let (columns, values) = match &statement.source {
        InsertSource::Values { columns, values } => (columns, values),
        InsertSource::Json { value, default_unset } => {
            return insert_json(schema, statement, value, *default_unset, variables);
        }
    };
    let mut partition: Box<[Ops]> = schema.partition_key.iter().map(|_| Ops::new()).collect();
    let mut clustering: Box<[Ops]> = schema.clustering.iter().map(|_| Ops::new()).collect();
    let mut operations = Vec::new();
    let distinct: BTreeSet<&str> = columns.iter().map(|name| name.as_str()).collect();
    if distinct.len() < columns.len() {
        return Err(Error::invalid("The column names contains duplicates"));
    }
    if columns.len() != values.len() {
        return Err(Error::invalid("Unmatched column names/values"));
    }
    for (name, value) in columns.iter().zip(values) {
        let column = column(schema, name)?;
        let term = prepare_paced(variables, value, name, &column.ty).await?;
        match column.kind {
            ColumnKind::PartitionKey => partition[column.position as usize].push(Op::Eq(term)),
            ColumnKind::Clustering => clustering[column.position as usize].push(Op::Eq(term)),
            ColumnKind::Static | ColumnKind::Regular => operations.push((column, Operation::set(column, term))),
        }
    }
    let missing = |ops: &[Ops], columns: &[Column]| {
        let names: Vec<&str> =
            ops.iter().zip(columns).filter(|(ops, _)| ops.is_empty()).map(|(_, column)| column.name.as_str()).collect();
        if names.is_empty() { None } else { Some(names.join(", ")) }
    };
    if let Some(names) = missing(&partition, &schema.partition_key) {
        return Err(Error::invalid(format!("Missing mandatory PRIMARY KEY part {names}")));
    }
    let only_statics = !operations.is_empty() && operations.iter().all(|(column, _)| column.kind == ColumnKind::Static);
    let no_clustering = clustering.iter().all(|ops| ops.is_empty());
    let statics_alone = only_statics && no_clustering && !schema.clustering.is_empty();
    let gap = clustering.iter().position(|ops| ops.is_empty());
    let after_gap = gap.and_then(|gap| (gap..clustering.len()).find(|i| !clustering[*i].is_empty()));
    if let (Some(gap), Some(given)) = (gap, after_gap) {
        return Err(Error::invalid(format!(
            "PRIMARY KEY column \"{}\" cannot be restricted as preceding column \"{}\" is not restricted",
            schema.clustering[given].name, schema.clustering[gap].name
        )));
    }
    if !statics_alone && let Some(names) = missing(&clustering, &schema.clustering) {
        return Err(Error::invalid(format!("Missing mandatory PRIMARY KEY part {names}")));
    }
    let clustering = if clustering.is_empty() || statics_alone {
        Clustering::All
    } else {
        Clustering::Columns { prefix: clustering, slice: Box::default() }
    };
    let mut modify = assemble(
        Verb::Insert,
        schema,
        Partition::Keys(partition),
        clustering,
        operations,
        &statement.attributes,
        variables,
    )?;
    modify.marker = !statics_alone;
    Ok(modify)
}

/// Plans an INSERT of all columns, with a variable for each that follows the statement's variables.
fn insert_json(
    schema: &Rc<TableSchema>,
    statement: &ast::Insert,
    value: &ast::Term,
    default_unset: bool,
    variables: &mut Variables<'_>,
) -> Result<Modify, Error> {
    let text = prepare(variables, value, "[json]", &CqlType::Text)?;
    let mut partition = Vec::with_capacity(schema.partition_key.len());
    let mut clustering = Vec::with_capacity(schema.clustering.len());
    let mut operations = Vec::new();
    for (i, column) in schema.all_columns().enumerate() {
        let number = u16::try_from(variables.count() + i);
        let term = Term::Variable(number.map_err(|_| Error::invalid("A statement with too many variables"))?);
        match column.kind {
            ColumnKind::PartitionKey => partition.push(smallvec![Op::Eq(term)]),
            ColumnKind::Clustering => clustering.push(smallvec![Op::Eq(term)]),
            ColumnKind::Static | ColumnKind::Regular => operations.push((column, Operation::set(column, term))),
        }
    }
    let clustering = if clustering.is_empty() {
        Clustering::All
    } else {
        Clustering::Columns { prefix: clustering.into(), slice: Box::default() }
    };
    let partition = Partition::Keys(partition.into());
    let mut modify =
        assemble(Verb::Insert, schema, partition, clustering, operations, &statement.attributes, variables)?;
    modify.marker = true;
    let column = |column: &Column| ColumnSpec {
        keyspace: variables.keyspace.clone(),
        table: variables.table.clone(),
        name: column.name.clone(),
        ty: column.ty.clone(),
    };
    let columns = JsonColumns {
        default_unset,
        columns: schema.all_columns().map(|column| (column.name.clone(), column.ty.clone())).collect(),
        key_columns: schema.partition_key.len() + schema.clustering.len(),
    };
    let specs = schema.all_columns().map(column).collect();
    modify.json = Some(Box::new(JsonInsert { text, specs, columns: Arc::new(columns) }));
    Ok(modify)
}

async fn update(
    schema: &Rc<TableSchema>,
    statement: &ast::Update,
    variables: &mut Variables<'_>,
) -> Result<Modify, Error> {
    let attributes = Attributes::plan(&statement.attributes, variables)?;
    let mut operations: Vec<(&Column, Operation)> = Vec::new();
    // The assigned columns so far, with true for an operation on the entire column.
    let mut assigned: BTreeMap<ColumnId, bool> = BTreeMap::new();
    for assignment in &statement.assignments {
        let column = column(schema, &assignment.column)?;
        if matches!(column.kind, ColumnKind::PartitionKey | ColumnKind::Clustering) {
            return Err(Error::invalid(format!("PRIMARY KEY part {} found in SET part", column.name)));
        }
        let operation = Operation::assign(column, &assignment.op, variables).await?;
        let whole = operation.change.is_whole();
        if assigned.insert(column.id, whole).is_some_and(|before| before || whole) {
            return Err(Error::invalid(format!("Multiple incompatible setting of column {}", column.name)));
        }
        operations.push((column, operation));
    }
    let restrictions = analyse(schema, &statement.relations, Purpose::Write("UPDATE"), variables).await?;
    check_rows(schema, &restrictions, &operations, "UPDATE")?;
    let Restrictions { partition, clustering, .. } = restrictions;
    let none = ast::Attributes::default();
    let mut modify = assemble(Verb::Update, schema, partition, clustering, operations, &none, variables)?;
    modify.attributes = attributes;
    Ok(modify)
}

async fn delete(
    schema: &Rc<TableSchema>,
    statement: &ast::Delete,
    variables: &mut Variables<'_>,
) -> Result<Modify, Error> {
    let mut operations = Vec::new();
    for target in &statement.targets {
        let (DeleteTarget::Column(name)
        | DeleteTarget::Element { column: name, .. }
        | DeleteTarget::Field { column: name, .. }) = target;
        let column = column(schema, name)?;
        if matches!(column.kind, ColumnKind::PartitionKey | ColumnKind::Clustering) {
            return Err(Error::invalid(format!(
                "Invalid identifier {name} for deletion (should not be a PRIMARY KEY part)"
            )));
        }
        operations.push((column, Operation::delete(column, target, variables)?));
        variables.pace.worked(PLAN_WORK).await?;
    }
    let attributes = Attributes::plan(&statement.attributes, variables)?;
    let restrictions = analyse(schema, &statement.relations, Purpose::Write("DELETE"), variables).await?;
    let deletion = if !operations.is_empty() {
        check_rows(schema, &restrictions, &operations, "DELETE")?;
        Deletion::None
    } else if restrictions.clustering == Clustering::All {
        Deletion::Partitions
    } else if restrictions.clustering.is_full(schema) {
        Deletion::Rows
    } else {
        Deletion::Ranges
    };
    let Restrictions { partition, clustering, .. } = restrictions;
    let none = ast::Attributes::default();
    let mut modify = assemble(Verb::Delete, schema, partition, clustering, operations, &none, variables)?;
    modify.attributes = attributes;
    modify.deletion = deletion;
    modify.checks_large_data &= !statement.bypass_large_data_guardrails;
    Ok(modify)
}

/// Operations on columns need rows with full keys. If all columns are static, they need no
/// clustering restrictions at all.
fn check_rows(
    schema: &TableSchema,
    restrictions: &Restrictions,
    operations: &[(&Column, Operation)],
    statement: &str,
) -> Result<(), Error> {
    let clustering = &restrictions.clustering;
    if operations.iter().all(|(column, _)| column.kind == ColumnKind::Static) {
        if *clustering == Clustering::All {
            return Ok(());
        }
        return Err(Error::invalid(format!(
            "Invalid restrictions on clustering columns since the {statement} statement modifies only static columns"
        )));
    }
    if clustering.is_full(schema) {
        return Ok(());
    }
    if let Clustering::Columns { prefix, slice } = clustering
        && !slice.is_empty()
    {
        return Err(Error::invalid(format!(
            "Invalid operator in where clause: {statement} of columns needs the full clustering key, but {} is restricted \
             by a range",
            schema.clustering[prefix.len()].name
        )));
    }
    let given = match clustering {
        Clustering::Columns { prefix, .. } => prefix.len(),
        _ => 0,
    };
    if statement == "DELETE"
        && let Some((column, _)) = operations.iter().find(|(column, _)| column.kind != ColumnKind::Static)
    {
        return Err(Error::invalid(format!(
            "Primary key column '{}' must be specified in order to modify column '{}'",
            schema.clustering[given].name, column.name
        )));
    }
    let names: Vec<&str> = schema.clustering[given..].iter().map(|column| column.name.as_str()).collect();
    Err(Error::invalid(format!("Missing mandatory PRIMARY KEY part {}", names.join(", "))))
}

fn assemble(
    verb: Verb,
    schema: &Rc<TableSchema>,
    partition: Partition,
    clustering: Clustering,
    operations: Vec<(&Column, Operation)>,
    attributes: &ast::Attributes,
    variables: &mut Variables<'_>,
) -> Result<Modify, Error> {
    let attributes = Attributes::plan(attributes, variables)?;
    let read_first = read_first(schema, &operations)?;
    let mut regulars = Vec::new();
    let mut statics = Vec::new();
    for (column, operation) in operations {
        if column.kind == ColumnKind::Static { &mut statics } else { &mut regulars }.push(operation);
    }
    regulars.sort_by_key(|operation: &Operation| operation.column);
    statics.sort_by_key(|operation: &Operation| operation.column);
    let simple = [&regulars, &statics].into_iter().all(|operations| {
        operations.iter().all(Operation::is_simple)
            && operations.windows(2).all(|pair| pair[0].column != pair[1].column)
    });
    let slow = are_slow(&regulars) || are_slow(&statics);
    Ok(Modify {
        verb,
        schema: schema.clone(),
        partition,
        clustering,
        operations: regulars.into(),
        statics: statics.into(),
        simple,
        slow,
        counter: schema.is_counter(),
        marker: false,
        deletion: Deletion::None,
        attributes,
        json: None,
        checks_large_data: large_data::is_checked(schema),
        read_first,
    })
}

fn read_first(schema: &TableSchema, operations: &[(&Column, Operation)]) -> Result<Option<Box<ReadFirst>>, Error> {
    let mut columns: Vec<&Column> = Vec::new();
    for (column, operation) in operations {
        if operation.change.reads_first() && columns.iter().all(|other| other.id != column.id) {
            columns.push(column);
        }
    }
    let Some(first) = columns.first() else { return Ok(None) };
    let statics = first.kind == ColumnKind::Static;
    if columns.iter().any(|column| (column.kind == ColumnKind::Static) != statics) {
        return Err(Error::not_supported("Changing elements of static and of other lists in one statement"));
    }
    let keys = if statics { 0 } else { schema.clustering.len() };
    let output = (0..keys)
        .map(|i| OutputColumn::Clustering(i as u16))
        .chain(columns.iter().map(|column| OutputColumn::Elements(column.id)))
        .collect();
    let output = Rc::new(Output::new(output, statics, false));
    Ok(Some(Box::new(ReadFirst { columns: columns.iter().map(|column| column.id).collect(), statics, output })))
}
