"""What a bank's own tests take: a sandbox for every kind of test, time in their hands, and what to assert."""
