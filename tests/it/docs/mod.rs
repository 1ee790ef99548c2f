//! What the pages promise: their links, their examples, their figures, their programs.

mod examples;
mod figures;
mod pages;
mod programs;
