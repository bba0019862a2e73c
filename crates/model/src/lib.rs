//! The data model of CQL: values, types, keys, tokens, schema, mutations, fragments, merge.
