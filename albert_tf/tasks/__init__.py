"""Fine-tuning tasks: kinds behind one interface, and data sets as rows."""
