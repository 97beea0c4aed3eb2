//! How a foreign tensor becomes a view, and how results go back.
