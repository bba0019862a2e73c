//! The language: text to statement to plan to answer.
