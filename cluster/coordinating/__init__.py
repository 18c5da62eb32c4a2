"""The parts of the coordinator, one a file: `coordinator.py` puts them together and says who does what.

What they all look at is `Shared`; whatever else a part keeps is its own, and the others ask it. A part is given those
it asks when it is made, so the list of its arguments is the list of what it depends on; nobody asks a part below it
in this list:

    roster                slices are started, and stopped when nobody needs them
    logins                who is logged in where, for connection points that ask
    operations            a wish and what became of it; the history
    waves                 how many key groups move at once
    newcomers, leavers    slices that a view is to have, and those that it is to have no more
    steps                 one view after another, to where the wish wants
    wishes                what operators want: whether it can be, what it would cost
    recovering            others take the place of slices that have died
    arriving              slices join; the coordinator's own beginning, and its next life
    watching              time passes; who is lost is not waited for
    measures, showing     what is known of the cluster, in numbers and as a document
    requests              operators' requests and their answers
"""
