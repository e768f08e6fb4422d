"""Fine-tuning tasks: four kinds behind one interface, data sets as rows."""
